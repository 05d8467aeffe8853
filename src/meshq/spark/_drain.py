"""Draining: everything that is in a queue goes through a function of DataFrames, once, and leaves the queue."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import attrs

from meshq.errors import CallTimeoutError, CursorLostError, NotFoundError, SettingsError
from meshq.spark._nodes import Brokers, NodeLink
from meshq.spark._offsets_format import Offset
from meshq.spark._options_plan import access_of, read_options
from meshq.spark._read_settings import read_settings, stream_settings
from meshq.spark._source_cursors import SourceCursors


@attrs.frozen(kw_only=True)
class DrainReport:
    """The counts of a ``drain``.  ``rows``: as Spark has read them; a batch that is read twice counts twice."""

    rows: int
    batches: int
    seconds: float


def drain(
    spark: Any,
    *,
    url: str,
    queue: str,
    sink: Callable[[Any, int], object],
    checkpoint: str,
    cursor: str | None = None,
    options: Mapping[str, str] | None = None,
    timeout: float = math.inf,
) -> DrainReport:
    """Read a queue until it is empty, in batches that ``sink(df, batch_id)`` writes somewhere, and acknowledge them.

    A batch is acknowledged when ``sink`` has returned and Spark has written that down in ``checkpoint``; after a crash
    the same batch comes again under the same number, with the same rows.  What comes meanwhile is drained, too.

    ``spark``: a session.  ``cursor``: the name of a durable cursor, which stays; None: one of the queue's name, and if
    it was not there before, it is deleted in the end.  ``options``: further options of a streaming read.  ``timeout``:
    seconds.

    Raises:
        SettingsError: an option is not allowed.
        NotFoundError: there is no such queue.
        CallTimeoutError: the time is up; what was written is acknowledged at the next call.
        StreamingQueryException: of Spark: the query has failed, and why.
    """
    given = {**(options or {}), "url": url, "subscribe": queue} | ({} if cursor is None else {"cursor": cursor})
    values = read_options(given, "streaming read")
    if len(values["subscribe"]) != 1:
        raise SettingsError("queue", queue, "the name of one queue")
    name = stream_settings(values).cursor
    began, tally = time.monotonic(), _Tally(sink)
    with Brokers(access_of(values)) as brokers:
        known = {link.node for link in brokers.links().values() if _has_cursor(link, queue, name)}
        while True:
            frame = spark.readStream.format("meshq").options(**given).load()
            writer = frame.writeStream.foreachBatch(tally.write).option("checkpointLocation", checkpoint)
            tally.query = query = writer.trigger(availableNow=True).start()
            left = began + timeout - time.monotonic()
            if math.isinf(left):
                query.awaitTermination()
            elif not query.awaitTermination(max(0.001, left)):
                query.stop()
                text = f"draining {queue!r} took longer than {timeout:g} s"
                raise CallTimeoutError(text, outcome="not_done") from TimeoutError(text)
            tally.note()
            if _acknowledged(values, query):
                break
        for link in brokers.links().values():
            if cursor is None and link.node not in known:
                with suppress(NotFoundError):
                    link.client.delete_cursor(queue, name)
    return DrainReport(rows=sum(tally.rows.values()), batches=tally.batches, seconds=time.monotonic() - began)


def _has_cursor(link: NodeLink, queue: str, name: str) -> bool:
    try:
        return any(one.name == name for one in link.client.cursors(queue))
    except NotFoundError:
        return False


def _acknowledged(values: Mapping[str, Any], query: Any) -> bool:
    """Acknowledge the last batch of an ended query; return whether the queue is empty."""
    cursors = SourceCursors(access_of(values), read_settings(values), stream_settings(values))
    try:
        cursors.refresh()
        progress = query.lastProgress
        if progress is not None:
            end = progress["sources"][0]["endOffset"]
            if end is not None:
                offset = Offset.of(json.loads(end) if type(end) is str else end, stream_settings(values).cursor)
                with suppress(CursorLostError):
                    cursors.ack(offset)
        return cursors.empty()
    finally:
        cursors.close()


class _Tally:
    """Counts the rows of the batches of a query."""

    def __init__(self, sink: Callable[[Any, int], object]) -> None:
        self._sink = sink
        self.query: Any = None
        self.batches = 0
        self.rows: dict[tuple[str, int], int] = {}

    def write(self, frame: Any, batch: int) -> None:
        """Write one batch."""
        self._sink(frame, batch)
        self.batches += 1
        self.note()

    def note(self) -> None:
        """Note the rows of the batches that have ended."""
        for progress in self.query.recentProgress if self.query is not None else ():
            self.rows[progress["runId"], progress["batchId"]] = progress["numInputRows"]
