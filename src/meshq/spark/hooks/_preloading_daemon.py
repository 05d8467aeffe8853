"""Spark's daemon with everything imported: its workers are forked from it, and start sooner."""

import pyspark.sql.worker.plan_data_source_read
import pyspark.worker
from pyspark.daemon import manager

import meshq.spark.hooks

__all__ = ["meshq", "pyspark"]

if __name__ == "__main__":
    manager()
