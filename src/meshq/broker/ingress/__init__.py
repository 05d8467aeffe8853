"""How messages come in: routing, numbers, duplicate ids, and what waits for the disk."""
