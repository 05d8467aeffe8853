"""Durable cursors of queues: their records, their leases, and the holes of their queues."""
