"""Queries of Spark whose processes are killed at every hook."""
