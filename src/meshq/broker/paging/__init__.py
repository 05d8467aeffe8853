"""Paging: which messages of the queues are in memory, and which only on the disk."""
