"""Fuzzing: bytes that nobody of ours has written, for every format that comes from outside."""
