"""The writers of the data source, in batch and as a stream, as Spark calls them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from meshq.blocking import Client
from meshq.blocking.connector import call_in_loop
from meshq.client import Producer, Stage, Transaction, send_bodies, send_columns
from meshq.errors import (
    CallTimeoutError,
    ConnectionBrokenError,
    NotActiveError,
    NotFoundError,
    SecurityError,
    SettingsError,
    UnblockedError,
    UsageError,
    caused,
)
from meshq.spark._nodes import Brokers, NodeAddress
from meshq.spark._options_plan import Access, WriteSettings
from meshq.spark._sink_plan import StageResult, check_alone, decision_of, node_of_sink
from meshq.spark.hooks._arrow_rows import RowReader

_log: Final = logging.getLogger("meshq.spark")
_CUT: Final = (ConnectionBrokenError, CallTimeoutError, UnblockedError, NotActiveError)
#: Seconds between two tries.
_PAUSE_S: Final = 0.2
#: Spark's own names for what a task belongs to.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
T = TypeVar("T")


@attrs.frozen
class PartWritten(WriterCommitMessage):
    """The commit message of a task.  Holds no secret."""

    result: StageResult


class BatchName:
    """The sink and the number of the batch that a task writes."""

    def __init__(self, sink: str | None, batch: int | None) -> None:
        self._sink = sink
        self._batch = batch

    def of(self, context: Any) -> tuple[str, int]:
        """Return the sink and the batch: by the options, else by the names of Spark.

        Raises:
            UsageError: Spark does not say which batch it is.
        """
        sink = self._sink or context.getLocalProperty(_QUERY_ID)
        batch = self._batch if self._batch is not None else context.getLocalProperty(_BATCH_ID)
        if sink is None or batch is None:
            raise UsageError("Spark does not say to which query and batch this task belongs")
        return str(sink), int(batch)


class PartWriter:
    """Writes, decides and gives up the parts of batches; for batch and stream alike."""

    def __init__(self, access: Access, settings: WriteSettings, name: BatchName) -> None:
        self._access = access
        self._settings = settings
        self._name = name

    # -- in an executor

    def write(self, batches: Iterable[Any]) -> PartWritten:
        """Write the rows of one task.

        Raises:
            SettingsError: a row can't be sent.
            MeshqError: the broker has refused it, or the node was not reached.
        """
        context = TaskContext.get()
        sink, batch = self._name.of(context)
        partition = int(context.partitionId())
        reader = RowReader(self._settings.topic, partition)
        with Brokers(self._access) as brokers:
            if self._settings.exactly_once:
                return self._stage(brokers, (sink, batch, partition), reader, batches)
            return self._send(brokers, (sink, batch, partition), reader, batches)

    def _stage(
        self, brokers: Brokers, part: tuple[str, int, int], reader: RowReader, batches: Iterable[Any]
    ) -> PartWritten:
        sink, batch, partition = part
        address = self._address(brokers, sink)
        # An earlier attempt may have left its stage, also one of another life of the query.
        attempt = uuid.uuid4().int >> 66
        rows = 0
        with brokers.reached(address, f"the sink {sink!r}") as client:
            stage = client.stage(
                sink, batch, partition=partition, attempt=attempt, timeout=self._settings.stage_timeout_s
            )
            with stage as transaction:
                for one in batches:
                    rows += call_in_loop(client, _stage_rows, transaction._inner, reader, one)
            number = transaction.stage_id
        assert number is not None
        return PartWritten(StageResult(sink, address.node, number, rows))

    def _send(
        self, brokers: Brokers, part: tuple[str, int, int], reader: RowReader, batches: Iterable[Any]
    ) -> PartWritten:
        prefix = "-".join(map(str, part))
        addresses = brokers.addresses_in_time()
        node = node_of_sink(part[0], dict.fromkeys(addresses, ()))
        sender = Sender(prefix)
        with brokers.reached(addresses[node], "the address to send to") as client:
            for one in batches:
                call_in_loop(client, sender.send, client._inner, reader, one)
        return PartWritten(StageResult(part[0], node, 0, sender.rows))

    def _address(self, brokers: Brokers, sink: str) -> NodeAddress:
        """The node of a sink.  Every node is asked: another ledger may have it.

        Raises:
            ConnectionBrokenError: a node can't be reached.
        """
        until = time.monotonic() + self._access.reach_s
        while True:
            addresses = brokers.addresses_in_time()
            links = brokers.links()
            if away := sorted(addresses.keys() - links.keys()):
                if time.monotonic() >= until:
                    text = (
                        f"the sink {sink!r} may be on the node {away[0]}, which was not reached within partitionTimeout"
                    )
                    raise caused(ConnectionBrokenError(text, outcome="not_done"), LookupError(away[0]))
                time.sleep(_PAUSE_S)
                continue
            if len(addresses) == 1:
                return next(iter(addresses.values()))
            ledgers = {node: [one.sink for one in link.client.sinks()] for node, link in links.items()}
            return addresses[node_of_sink(sink, ledgers)]

    # -- at the driver

    def commit(self, results: list[PartWritten | None], batch: int) -> StageResult | None:
        """Commit a batch, as often as need be; return the sink, None if nothing was staged.

        Raises:
            MeshqError: it could not be committed; some of it may be, and then all of it is.
        """
        decision = decision_of(None if one is None else one.result for one in results)
        if decision is None:
            return None
        done = self._decide(
            decision.node,
            f"the sink {decision.sink!r}",
            lambda client: client.commit_batch(decision.sink, batch, decision.stages, purge=self._settings.purge),
            alone=self._settings.purge is not None,
        )
        if done.already:
            _log.warning("batch %d of the sink %r was committed before, and is not sent again", batch, decision.sink)
        return StageResult(decision.sink, decision.node, 0, decision.rows)

    def abort(self, results: list[PartWritten | None], batch: int) -> None:
        """Give the parts of a batch up, unless it is committed."""
        for sink, node in sorted({(one.result.sink, one.result.node) for one in results if one is not None}):
            try:
                self._abandon(sink, node, batch)
            except (*_CUT, SecurityError, NotFoundError) as error:
                _log.warning("the stages of batch %d of %r are left to their timeout: %s", batch, sink, error)

    def _abandon(self, sink: str, node: str, batch: int) -> None:
        self._decide(node, f"the sink {sink!r}", lambda client: client.abandon_batch(sink, batch))

    def _decide(self, node: str, what: str, call: Callable[[Client], T], *, alone: bool = False) -> T:
        """Make a call at a node that can be repeated, until it was answered; ``alone``: only where no other node is."""
        until = time.monotonic() + self._access.reach_s
        with Brokers(self._access) as brokers:
            while True:
                addresses = brokers.addresses_in_time()
                if alone:
                    check_alone(addresses)
                address = addresses.get(node, NodeAddress(node, ()))
                try:
                    with brokers.reached(address, what) as client:
                        return call(client)
                except _CUT:
                    if time.monotonic() >= until:
                        raise
                    time.sleep(_PAUSE_S)

    def forget(self, done: StageResult) -> None:
        """Delete a sink of a single batch after its placing; a user who may not leaves it there."""

        def delete(client: Client) -> None:
            until = time.monotonic() + self._access.reach_s
            while time.monotonic() < until:
                try:
                    client.delete_sink(done.sink)
                    return
                except UsageError:
                    # Still being placed.
                    time.sleep(_PAUSE_S / 10)

        try:
            self._decide(done.node, f"the sink {done.sink!r}", delete)
        except NotFoundError:
            return
        except SecurityError as error:
            _log.warning("the ledger keeps the sink %r: %s; give txnAppId and txnVersion", done.sink, error)


async def _stage_rows(transaction: Transaction, reader: RowReader, batch: Any) -> int:
    """Send the rows of a record batch into a stage; return their number."""
    assert isinstance(transaction, Stage)
    bodies = reader.bodies(batch)
    if bodies is not None:
        await send_bodies(transaction, *bodies)
        return bodies.rows
    columns = reader.columns(batch)
    if columns is not None:
        for one in columns:
            await send_columns(transaction, one)
        return int(batch.num_rows)
    count = 0
    for row in reader.rows(batch):
        try:
            await transaction.send(row.address, row.body, **row.about)
        except SettingsError as error:
            raise reader.placed(error) from None
        count += 1
    return count


class Sender:
    """Sends rows at once, each with a duplicate id of its place."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.rows: int = 0

    async def send(self, client: Any, reader: RowReader, batch: Any) -> None:
        """Send the rows of a record batch; on return they are stored.

        Raises:
            MeshqError: a row was refused.
        """
        producers: dict[str, Producer] = {}
        async with AsyncExitStack() as stack:
            for row in reader.rows(batch):
                about = {"duplicate_id": f"{self._prefix}-{self.rows}"} | row.about
                if row.address not in producers:
                    producers[row.address] = await stack.enter_async_context(client.producer(row.address))
                try:
                    await producers[row.address].send(row.body, **about)
                except SettingsError as error:
                    raise reader.placed(error) from None
                self.rows += 1


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: all of it, or nothing."""

    def __init__(self, access: Access, settings: WriteSettings) -> None:
        # Without a name of its own each save is a sink of one batch.
        self._once = settings.sink is None
        self._batch = settings.batch or 0
        sink = f"save-{uuid.uuid4()}" if settings.sink is None else settings.sink
        self._writer = PartWriter(access, settings, BatchName(sink, self._batch))

    def write(self, iterator: Iterator[Any]) -> PartWritten:
        """Write the rows of one task."""
        return self._writer.write(iterator)

    def commit(self, messages: list[Any]) -> None:
        """Commit the stages of all tasks."""
        done = self._writer.commit(messages, self._batch)
        if done is not None and self._once:
            self._writer.forget(done)

    def abort(self, messages: list[Any]) -> None:
        """Drop the stages of the tasks."""
        self._writer.abort(messages, self._batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a stream: all of it, and once."""

    def __init__(self, access: Access, settings: WriteSettings) -> None:
        self._writer = PartWriter(access, settings, BatchName(settings.sink, None))

    def write(self, iterator: Iterator[Any]) -> PartWritten:
        """Write the rows of one task."""
        return self._writer.write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commit the stages of all tasks, unless the batch was committed before."""
        self._writer.commit(messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Drop the stages of the tasks, unless the batch is committed."""
        self._writer.abort(messages, batchId)
