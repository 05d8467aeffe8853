"""Bodies beside the log: large messages, and messages that are not durable."""
