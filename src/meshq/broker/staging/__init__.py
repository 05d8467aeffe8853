"""Stages of a node: staging, deciding and placing batches."""
