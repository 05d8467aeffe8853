"""Histories of tests, and the checkers that judge them: the package's room for ``Cluster.history``."""
