"""Allocation of disk space: preallocated segments, the full disk, and who waits for space."""
