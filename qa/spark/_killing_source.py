"""The data source, with a place in each hook where its process may be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pyspark_meshq import DefaultSource

#: Every place; ``driver`` is the long-lived process while it has nothing to decide.
HOOKS: Final = (
    *("initial_offset", "latest_offset", "latest_offset_done", "partitions", "driver", "read", "source_commit"),
    *("write", "write_done", "sink_commit", "sink_commit_done", "abort"),
)


class Strikes:
    """Kills the process that comes to an armed place, once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def at(self, hook: str) -> None:
        """Die here, if this place is armed."""
        try:
            os.rename(Path(self._folder) / hook, Path(self._folder) / f"{hook}.struck")
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def arm(self, hook: str) -> None:
        """Have the next process die that comes to a place.  An abort needs a task that dies first."""
        for name in ("write_done", "abort") if hook == "abort" else (hook,):
            (Path(self._folder) / name).touch()

    def struck(self, hook: str) -> bool:
        """Whether a place has struck since ``arm``; disarms all places."""
        struck = (Path(self._folder) / f"{hook}.struck").exists()
        for path in Path(self._folder).iterdir():
            path.unlink()
        return struck


class KillingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream, with these places."""

    def __init__(self, inner: Any, strikes: Strikes) -> None:
        self._inner = inner
        self._strikes = strikes

    def initialOffset(self) -> dict[str, Any]:
        """As the reader's."""
        offset: dict[str, Any] = self._inner.initialOffset()
        self._strikes.at("initial_offset")
        return offset

    def getDefaultReadLimit(self) -> Any:
        """As the reader's."""
        return self._inner.getDefaultReadLimit()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """As the reader's."""
        self._strikes.at("latest_offset")
        offset: dict[str, Any] = self._inner.latestOffset(start, limit)
        self._strikes.at("latest_offset_done")
        return offset

    def prepareForTriggerAvailableNow(self) -> None:
        """As the reader's."""
        self._inner.prepareForTriggerAvailableNow()

    def reportLatestOffset(self) -> Any:
        """As the reader's."""
        self._strikes.at("driver")
        return self._inner.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        """As the reader's."""
        found = self._inner.partitions(start, end)
        self._strikes.at("partitions")
        return found

    def read(self, partition: Any) -> Iterator[Any]:
        """As the reader's."""
        for batch in self._inner.read(partition):
            self._strikes.at("read")
            yield batch

    def commit(self, end: dict[str, Any]) -> None:
        """As the reader's."""
        self._strikes.at("source_commit")
        self._inner.commit(end)

    def stop(self) -> None:
        """As the reader's."""
        self._inner.stop()


class KillingWriter(DataSourceStreamArrowWriter):
    """The writer of a stream, with these places."""

    def __init__(self, inner: Any, strikes: Strikes) -> None:
        self._inner = inner
        self._strikes = strikes

    def write(self, iterator: Iterator[Any]) -> Any:
        """As the writer's."""
        result = self._inner.write(self._struck(iterator))
        self._strikes.at("write_done")
        return result

    def _struck(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            yield batch
            self._strikes.at("write")

    def commit(self, messages: list[Any], batchId: int) -> None:
        """As the writer's."""
        self._strikes.at("sink_commit")
        self._inner.commit(messages, batchId)
        self._strikes.at("sink_commit_done")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """As the writer's."""
        self._strikes.at("abort")
        self._inner.abort(messages, batchId)


class KillingSource(DefaultSource):
    """The data source, whose option ``kills`` is the folder in which places are armed."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._strikes = Strikes(self.options.pop("kills", ""))

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "meshq_killing"

    def streamReader(self, schema: Any) -> Any:
        """The reader of a stream."""
        return KillingReader(super().streamReader(schema), self._strikes)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """The writer of one batch of a stream."""
        return KillingWriter(super().streamWriter(schema, overwrite), self._strikes)
