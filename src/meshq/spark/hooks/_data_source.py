"""The data source: from options and schemas to readers and writers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meshq.spark._columns_plan import check_read, check_written, columns_read, ddl_of
from meshq.spark._options_plan import FLAG, access_of, read_options, write_settings
from meshq.spark._read_settings import read_settings, stream_settings
from meshq.spark.hooks._sink import BatchWriter, StreamWriter
from meshq.spark.hooks._source import BatchReader, FilteredBatchReader, StreamReader
from meshq.spark.hooks._versions import check_streaming

_GROUPS: Final = ("includeHeaders", "includeMetadata")


def schema_read(options: Mapping[str, str]) -> str:
    """The columns that are read with these options, for Spark, which does not say yet how it will read."""
    groups = frozenset(name for name in _GROUPS if name in options and FLAG.value(name, options[name]))
    return ddl_of(columns_read(groups))


def _fields(schema: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def batch_reader(options: Mapping[str, str], schema: Any) -> Any:
    """The reader of a batch.

    Raises:
        SettingsError: an option or a column is not allowed.
    """
    values = read_options(options, "batch read")
    check_read(_fields(schema))
    kind = FilteredBatchReader if values["pushFilters"] else BatchReader
    return kind(schema, access_of(values), read_settings(values), values["endingOffsets"])


def stream_reader(options: Mapping[str, str], schema: Any) -> Any:
    """The reader of a stream.

    Raises:
        SettingsError: an option or a column is not allowed.
    """
    check_streaming()
    values = read_options(options, "streaming read")
    check_read(_fields(schema))
    return StreamReader(schema, access_of(values), read_settings(values), stream_settings(values))


def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> Any:
    """The writer of a batch.

    Raises:
        SettingsError: an option, a column or the mode is not allowed.
    """
    values = read_options(options, "batch write")
    settings = write_settings(values, overwrite="overwrite" if overwrite else "")
    check_written(_fields(schema), topic=values["topic"] is not None)
    return BatchWriter(access_of(values), settings)


def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> Any:
    """The writer of one batch of a stream.

    Raises:
        SettingsError: an option, a column or the mode is not allowed.
    """
    values = read_options(options, "streaming write")
    settings = write_settings(values, overwrite="complete" if overwrite else "")
    check_written(_fields(schema), topic=values["topic"] is not None)
    return StreamWriter(access_of(values), settings)
