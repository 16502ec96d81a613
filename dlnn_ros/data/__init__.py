"""Recordings of motion: reading, checking, differentiating, splitting, synthesising."""
