"""Counts what the signals say: fleet metrics, and the spans of each run."""
