"""Outgoing runs: the outbox of each producer, and the send queue of a session."""
