"""Spark reads queues and writes to addresses: ``format("meshq")``; and ``drain``, which empties a queue.

Importing this loads neither Spark nor Arrow.
"""

from meshq.spark._drain import DrainReport, drain

__all__ = ["DrainReport", "drain"]
