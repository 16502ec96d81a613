"""Fitting models to recorded motion, scoring them, keeping them on disk."""
