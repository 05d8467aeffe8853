"""Clusters of real processes: the package's room for ``meshq_process_cluster``."""
