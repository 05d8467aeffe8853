"""The directory of a store: its lock, its identity, its parts elsewhere, and its pairs of files."""
