"""The readers of the data source, in batch and as a stream, as Spark calls them."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Final

import attrs
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from meshq.blocking import Client, Consumer
from meshq.blocking.connector import RunPart, at_end, holes_between, range_reader, receive_runs
from meshq.errors import (
    CallTimeoutError,
    ConnectionBrokenError,
    MeshqError,
    NotActiveError,
    NotFoundError,
    StaleDeliveryError,
    UnblockedError,
)
from meshq.spark._batches_plan import Slice, slices_of
from meshq.spark._filters_plan import Condition, Pruning, pruned
from meshq.spark._losses_plan import loss_error, losses_among
from meshq.spark._nodes import Brokers, NodeAddress, NodeLink, missing_queue
from meshq.spark._offsets_format import Bounds, Offset, bounds_of, key_of, parts_of, ranges_between
from meshq.spark._options_plan import Access
from meshq.spark._read_settings import ReadSettings, StreamSettings
from meshq.spark._source_cursors import SourceCursors
from meshq.spark.hooks._arrow_rows import BatchBuilder, PartitionFacts
from meshq.spark.hooks._versions import STREAMING, arrow_schema, available_now

_log: Final = logging.getLogger("meshq.spark")
#: Seconds between two looks for a node that is away.
_PAUSE_S: Final = 0.2
#: A link that was lost: the rest of a range is read over another one.
_CUT: Final = (ConnectionBrokenError, CallTimeoutError, UnblockedError, NotActiveError, StaleDeliveryError)


@attrs.frozen(kw_only=True)
class ReadTask(InputPartition):
    """The work of a task: a range of a partition.  Travels to the executors, so it holds no secret."""

    facts: PartitionFacts
    lo: int
    hi: int
    address: NodeAddress
    #: The cursor whose owner may read this; empty in a batch read.
    cursor: str = ""
    fence: int = 0

    @property
    def key(self) -> str:
        """The name of the partition."""
        return key_of(self.facts.queue, self.facts.node)


class TaskReader:
    """Reads the range of a task, also over a link that is lost meanwhile."""

    def __init__(self, access: Access, schema: StructType, *, fail_on_loss: bool) -> None:
        self._access = access
        self._schema = schema
        self._fail_on_loss = fail_on_loss

    def read(self, task: ReadTask) -> Iterator[Any]:
        """The record batches of a task.

        Raises:
            DataLossError: messages are gone.
            CursorLostError: the query has lost the cursor.
            ConnectionBrokenError: the node was not reached in time.
        """
        builder = BatchBuilder(arrow_schema(self._schema), task.facts)
        at, rows = task.lo, 0
        with Brokers(self._access) as brokers:
            tried_since = time.monotonic()
            while at < task.hi:
                try:
                    with brokers.reached(task.address, task.key, reconnect_attempts=0) as client:
                        for part in self._parts(client, task, at):
                            builder.add(part)
                            header = part.run.header
                            at = header.sequence + (part.end - 1) * header.step + 1
                            rows += part.end - part.start
                            tried_since = time.monotonic()
                            if builder.full:
                                yield from builder.take()
                        if rows < task.hi - task.lo and task.fence:
                            self._check(client, task)
                        at = task.hi
                except _CUT as error:
                    if time.monotonic() - tried_since > self._access.reach_s:
                        raise
                    _log.warning("reading %s goes on at %d over another link: %s", task.key, at, error)
                    time.sleep(_PAUSE_S)
        yield from builder.take()

    def _parts(self, client: Client, task: ReadTask, at: int) -> Iterator[Any]:
        queue = task.facts.queue
        with range_reader(client, queue, at, task.hi, cursor=task.cursor, fence=task.fence) as reader:
            while parts := _next_parts(reader, task.key, self._access.answer_s):
                yield from parts

    def _check(self, client: Client, task: ReadTask) -> None:
        for lost in losses_among(holes_between(client, task.facts.queue, task.lo, task.hi)):
            error = loss_error(task.key, lost, (task.lo, task.hi))
            if self._fail_on_loss:
                raise error
            _log.warning("%s", error)


def _next_parts(reader: Consumer, key: str, timeout_s: float) -> list[RunPart]:
    """Receive the next runs of a range; none at its end.

    Raises:
        CallTimeoutError: nothing came in time.
    """
    parts = receive_runs(reader, timeout_s)
    if not parts and not at_end(reader):
        text = f"no message of {key} came within readTimeout ({timeout_s:g} s)"
        raise CallTimeoutError(text, outcome="not_done") from TimeoutError(text)
    return parts


class BatchReader(DataSourceReader):
    """Reads the present messages of queues.  Takes nothing, and needs no cursor."""

    def __init__(self, schema: StructType, access: Access, settings: ReadSettings, ending: str) -> None:
        self._settings = settings
        self._access = access
        self._reader = TaskReader(access, schema, fail_on_loss=False)
        self._end = bounds_of("endingOffsets", ending)
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        """Plan at least one task for each queue of a node that is not empty."""
        with Brokers(self._access) as brokers:
            links = brokers.links()
            found = {
                key_of(queue, link.node): link
                for link in links.values()
                for queue in self._settings.queues.among(link.client.queues())
            }
            for name in self._settings.queues.names:
                if not any(parts_of(key)[0] == name for key in found):
                    raise missing_queue(links.values(), name)
            for bounds in (self._settings.start, self._end):
                bounds.check_known(found)
            ordinals = {key: ordinal for ordinal, key in enumerate(sorted(found))}
            ranges = {
                key: self._pruning.part_of(*self._range(link, parts_of(key)[0]))
                for key, link in found.items()
                if self._pruning.reads(parts_of(key)[0], ordinals[key], link.node)
            }
        addresses = {node: link.address for node, link in links.items()}
        slices = slices_of(ranges, self._settings.min_tasks, self._settings.max_rows_of_task)
        return [_task(one, addresses, ordinals) for one in slices]

    def _range(self, link: NodeLink, queue: str) -> tuple[int, int]:
        """The sequences to read in one queue: from the first message on, to the last number."""
        tail = link.client.queue(queue).last_sequence + 1
        lo, hi = _bound(self._settings.start, queue, link.node, tail), _bound(self._end, queue, link.node, tail)
        hi = min(hi, tail)
        if lo >= hi:
            return (hi, hi)
        with range_reader(link.client, queue, lo, hi) as reader:
            parts = _next_parts(reader, key_of(queue, link.node), self._access.answer_s)
        return (parts[0].run.header.sequence + parts[0].start * parts[0].run.header.step, hi) if parts else (hi, hi)

    def read(self, partition: ReadTask | InputPartition) -> Iterator[Any]:
        """The rows of one task, as record batches."""
        if not isinstance(partition, ReadTask):
            # Spark's own stand-in where there is no partition.
            return iter(())
        return self._reader.read(partition)


class FilteredBatchReader(BatchReader):
    """A reader that leaves out the queues and sequences that conditions rule out."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Keep to the conditions on partitions and sequences; return the other conditions, for Spark."""
        conditions = [Condition(type(one).__name__, _column(one), getattr(one, "value", None)) for one in filters]
        self._pruning, whole = pruned(conditions)
        return [filter for filter, done in zip(filters, whole, strict=True) if not done]


def _column(condition: Any) -> str:
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _bound(bounds: Bounds, queue: str, node: str, tail: int) -> int:
    place = bounds.at(queue, node)
    return place if isinstance(place, int) else 1 if place == "earliest" else tail


def _task(one: Slice, addresses: dict[str, NodeAddress], ordinals: dict[str, int]) -> ReadTask:
    queue, node = parts_of(one.key)
    facts = PartitionFacts(queue, ordinals[one.key], node)
    return ReadTask(facts=facts, lo=one.lo, hi=one.hi, address=addresses[node])


class StreamReader(DataSourceStreamReader, available_now()):  # type: ignore[misc]
    """Reads queues as a stream, by durable cursors.

    All but ``read`` runs in one process at the driver, which owns the cursors; ``read`` runs in the executors.
    """

    def __init__(self, schema: StructType, access: Access, settings: ReadSettings, stream: StreamSettings) -> None:
        self._access = access
        self._settings = settings
        self._stream = stream
        self._reader = TaskReader(access, schema, fail_on_loss=stream.fail_on_loss)
        # Made where it is used first, and never sent to another process.
        self._cursors: SourceCursors | None = None
        self._last: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cursors": None, "_last": None}

    def _driver(self) -> SourceCursors:
        if self._cursors is None:
            # Spark ends this process by a signal, and mostly does not call stop().
            signal.signal(signal.SIGTERM, _leave)
            self._cursors = SourceCursors(self._access, self._settings, self._stream)
        return self._cursors

    def _offset(self, data: dict[str, Any]) -> Offset:
        return Offset.of(data, self._stream.cursor)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: where its cursors are."""
        return self._driver().first().to_json()

    def getDefaultReadLimit(self) -> Any:
        """Return a limit of Spark's for the limits of the options."""
        stream = self._stream
        if stream.max_rows is not None:
            return STREAMING.ReadMaxRows(stream.max_rows)
        if stream.max_bytes is not None:
            return STREAMING.ReadMaxBytes(stream.max_bytes)
        return STREAMING.ReadAllAvailable() if stream.min_rows is None else STREAMING.ReadMinRows(stream.min_rows)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself if there is none.  The batch before ``start`` is finished."""
        limited = not isinstance(limit, STREAMING.ReadAllAvailable)
        self._last = self._driver().latest(self._offset(start), limited=limited)
        return self._last.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the present ends of the queues as the end of the query."""
        self._driver().aim()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the queues reach, for the progress of the query."""
        return None if self._last is None else self._driver().highs(self._last).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        first, last = self._offset(start), self._offset(end)
        ranges = ranges_between(first, last)
        if not ranges:
            return []
        cursors = self._owning(ranges)
        cursors.check(first)
        cursors.check(last.moved({key: hi for key, (_, hi) in ranges.items()}))
        found: list[InputPartition] = []
        for one in slices_of(ranges, self._settings.min_tasks, self._settings.max_rows_of_task):
            queue, node = parts_of(one.key)
            owned = cursors.owned(one.key)
            assert owned is not None
            found.append(
                ReadTask(
                    facts=PartitionFacts(queue, last.places[one.key].ordinal, node),
                    lo=one.lo,
                    hi=one.hi,
                    address=owned.link.address,
                    cursor=self._stream.cursor,
                    fence=owned.cursor.fence,
                )
            )
        return found

    def _owning(self, keys: dict[str, tuple[int, int]]) -> SourceCursors:
        """Return the cursors once they have all these partitions.

        Raises:
            ConnectionBrokenError: one is not, and its node was not reached in time.
        """
        cursors = self._driver()
        until = time.monotonic() + self._access.reach_s
        while missing := [key for key in keys if cursors.owned(key) is None]:
            cause: MeshqError | None = None
            try:
                cursors.refresh()
            except (NotFoundError, ConnectionBrokenError) as error:
                cause = error
            if cursors.owned(missing[0]) is None:
                if time.monotonic() >= until:
                    text = f"the partition {missing[0]} was not reached within partitionTimeout"
                    raise ConnectionBrokenError(text, outcome="not_done") from (cause or LookupError(missing[0]))
                time.sleep(_PAUSE_S)
        return cursors

    def read(self, partition: ReadTask) -> Iterator[Any]:
        """The rows of one task, as record batches."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the batches before an offset, which Spark has finished."""
        self._driver().ack(self._offset(end))

    def stop(self) -> None:
        """Release the cursors, for the next run of the query."""
        cursors, self._cursors = self._cursors, None
        if cursors is not None:
            cursors.close()


def _leave(number: int, frame: FrameType | None) -> None:
    """Leave the process as after an error: Spark's own code then calls ``stop``."""
    sys.exit(128 + number)
