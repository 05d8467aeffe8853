"""Differences of the versions of PySpark: streams are read from 4.2 on."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Final

import pyspark
from pyspark.sql.pandas.types import to_arrow_schema

from meshq.errors import UsageError


def _streaming() -> Any:
    try:
        return importlib.import_module("pyspark.sql.streaming.datasource")
    except ModuleNotFoundError:
        return None


#: The module with the bounds of a batch; None: this version is older than 4.2, and tells a source no start of a batch.
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


def check_streaming() -> None:
    """Refuse streams with PySpark before 4.2, which does not tell a source where a batch begins.

    Raises:
        UsageError: this version of PySpark is too old.
    """
    if STREAMING is None:
        raise UsageError(f"a streaming read needs PySpark 4.2 or later; this is {pyspark.__version__}")
