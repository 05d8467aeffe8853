"""Differences of the versions of PySpark: bounds of a batch and queries that end came with 4.2."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, Final

import attrs
from pyspark.sql.pandas.types import to_arrow_schema

from meshq.errors import SettingsError
from meshq.spark._read_settings import StreamSettings

#: The options that take what came with 4.2.
BOUNDS: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


def _streaming() -> Any:
    try:
        return importlib.import_module("pyspark.sql.streaming.datasource")
    except ModuleNotFoundError:
        return None


#: The module with the bounds of a batch; None: this version has none, and tells a source no start of a batch.
STREAMING: Final[Any] = _streaming()


def arrow_schema(schema: Any) -> Any:
    """A schema of Spark's as one of Arrow's, with times in UTC."""
    # Before, times were in UTC always.
    told = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **told)


def available_now() -> type:
    """The class of readers that know of queries that end; a class without anything where there is none."""
    found: type = object if STREAMING is None else STREAMING.SupportsTriggerAvailableNow
    return found


def supported(stream: StreamSettings, given: Mapping[str, Any], options: Mapping[str, str]) -> StreamSettings:
    """The settings of a stream as this version can keep them.

    Raises:
        SettingsError: an option takes a later version.
    """
    if STREAMING is not None:
        return stream
    names = {name.lower() for name in options}
    for name in BOUNDS:
        if name.lower() in names:
            raise SettingsError(name, given[name], "nothing with PySpark 4.1: bounds of a batch came with 4.2")
    # What was finished is told here by commit alone.
    return attrs.evolve(stream, eager=False)
