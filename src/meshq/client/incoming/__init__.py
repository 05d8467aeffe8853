"""Incoming runs: the inbox of each consumer, and the reads of large bodies."""
