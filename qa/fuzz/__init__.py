"""Fuzzing of every format that comes from outside: random bytes go in, and only typed errors may come out."""
