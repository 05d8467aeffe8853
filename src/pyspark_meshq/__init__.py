"""The data source ``meshq`` for Spark, which finds it by the name of this package.

Every session of Spark that looks for any format imports this, so it loads nothing but Spark's own class.
"""

from pyspark_meshq._default_source import DefaultSource

__all__ = ["DefaultSource"]
