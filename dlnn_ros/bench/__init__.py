"""Measurements: throughput, latency, accuracy tables."""
