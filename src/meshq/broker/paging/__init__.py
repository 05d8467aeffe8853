"""What of the queues is in memory, and what on the disk only."""
