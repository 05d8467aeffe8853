"""The class of the data source, which imports the rest of meshq when Spark calls it."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Reads queues and writes to addresses of meshq brokers: ``format("meshq")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "meshq"

    def schema(self) -> str:
        """The columns that are read with these options."""
        from meshq.spark.hooks import schema_read

        return schema_read(self.options)

    def reader(self, schema: Any) -> Any:
        """The reader of a batch."""
        from meshq.spark.hooks import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:
        """The reader of a stream."""
        from meshq.spark.hooks import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """The writer of a batch."""
        from meshq.spark.hooks import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """The writer of one batch of a stream."""
        from meshq.spark.hooks import stream_writer

        return stream_writer(self.options, schema, overwrite)
