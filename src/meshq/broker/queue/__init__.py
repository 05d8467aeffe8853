"""Queues: runs, dispatch to consumers, unacked messages."""
