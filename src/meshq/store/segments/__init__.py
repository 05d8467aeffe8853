"""Segments on the disk: writing, reading and indexing them, and the records that are live in each."""
