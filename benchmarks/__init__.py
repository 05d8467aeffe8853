"""Measure meshq against a featureless floor and against Redis: ``python -m benchmarks``."""
