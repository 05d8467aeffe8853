"""The readers and writers that Spark calls in the processes of a job, made from options and schemas."""

from meshq.spark.hooks._data_source import batch_reader, batch_writer, schema_read, stream_reader, stream_writer

__all__ = ["batch_reader", "batch_writer", "schema_read", "stream_reader", "stream_writer"]
