"""What happened in a test, and the checkers that judge it: the package's room for ``Cluster.history``."""
