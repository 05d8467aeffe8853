"""Queries of Spark whose processes are killed at every hook, and what must hold afterwards."""
