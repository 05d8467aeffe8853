"""Buffered consumers: runs that have arrived, to be received outside the loop.

The loop pushes runs as they arrive, so that a message that is here costs no hop between threads.  None of them is
delivered before a caller has got it: what was handed over is counted here, and reported with the next
acknowledgement and before the consumer is closed.  What was not goes back uncounted.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import repeat

import attrs

from meshq import client as trio_client
from meshq.client import ConsumerStatistics, ConsumerTap, DeliveredRun, DeliverySpan, ReceivedMessage, Transaction
from meshq.errors import BusyError, ClosedError, SettingsError
from meshq.portal._block_runner import BlockRunner
from meshq.portal._buffer_life import new_buffer_life
from meshq.portal._loop_thread import LoopThread


class BufferedConsumer(ABC):
    """The common part of the consumers for threads and for asyncio."""

    _block: BlockRunner

    def __init__(self, loop: LoopThread, inner: trio_client.Consumer) -> None:
        #: The queue, as it was asked for.
        self.queue: str = inner.queue
        self._inner = inner
        self._name = f"the consumer of {inner.queue!r}"
        self._loop = loop
        self._lock = threading.Lock()
        # All below is touched with that lock only.  Runs to be handed over, the one that is being handed over, its
        # next index, and the index from which on the loop does not know that they were.
        self._runs: deque[DeliveredRun] = deque()
        self._run: DeliveredRun | None = None
        self._position = 0
        self._reported = 0
        # The next report to the loop: received, settled; and whether the loop was asked to take it.
        self._handed: list[DeliverySpan] = []
        self._settled: list[tuple[int, DeliverySpan]] = []
        self._armed = False
        # Whether a caller waits for messages.
        self._busy = False
        self._life = new_buffer_life(self._name)
        self._received = 0
        self._tap = ConsumerTap(inner, self._changed)
        self._auto = self._tap.auto

    def __repr__(self) -> str:
        statistics = self.statistics()
        return f"<Consumer {self.queue!r} {statistics.state} ready={statistics.ready}>"

    def statistics(self) -> ConsumerStatistics:
        """Return the state and counters of the consumer."""
        with self._lock:
            ready = sum(run.rows for run in self._runs if self._tap.current(run))
            if self._run is not None and self._tap.current(self._run):
                ready += self._run.rows - self._position
            return attrs.evolve(self._inner.statistics(), ready=ready, received=self._received)

    @abstractmethod
    def _wake_waiters(self) -> None:
        """With the lock: wake the waiting callers, because messages have arrived or the consumer has ended."""

    # -- handing over, with the lock

    def _ready(self) -> bool:
        """Whether a message can be received; messages of a lost session are dropped, and come again."""
        run = self._run
        if run is not None:
            if self._tap.current(run):
                return True
            self._run = None
        while self._runs:
            run = self._runs.popleft()
            if self._tap.current(run):
                self._run, self._position, self._reported = run, 0, 0
                return True
        return False

    def _hand_over(self, run: DeliveredRun, end: int) -> None:
        """Hand the messages of a run up to ``end`` to the caller."""
        start = self._position
        if self._auto:
            span = DeliverySpan(run, start, end - start)
            self._arm()
            run.settled |= span.mask
            self._settled.append((ConsumerTap.ACK, span))
        self._position = end
        self._received += end - start
        if end == run.rows:
            self._note()
            self._run = None

    def _note(self) -> None:
        """Note the received messages of the current run."""
        run = self._run
        if run is not None and self._position > self._reported:
            self._handed.append(DeliverySpan(run, self._reported, self._position - self._reported))
            self._reported = self._position

    def _check_waiting(self, timeout: float | None, who: str) -> None:
        """Raise unless the caller may wait for messages now.

        Raises:
            SettingsError, BusyError, MeshqError: see ``receive``.
        """
        if timeout is not None and (type(timeout) not in (int, float) or not timeout >= 0):
            raise SettingsError("timeout", timeout, "seconds from 0, or None")
        if self._busy:
            raise BusyError(f"two {who} receive from {self._name}")
        self._check()
        self._loop.check_thread()

    def _waited(self) -> bool:
        """Whether a wait for messages is over."""
        return self._ready() or self._life.state == "closed" or self._tap.ended or self._tap.failure is not None

    def _check(self) -> None:
        failure = self._tap.failure
        if failure is not None:
            raise failure
        if self._life.state == "closed":
            raise ClosedError(f"{self._name} is closed")
        self._block.check()

    # -- settling

    def _settle(self, deliveries: Sequence[ReceivedMessage], fate: int) -> None:
        if self._loop.forked:
            self._loop.check_thread()
        self._tap.check_settling()
        if not deliveries:
            return
        with self._lock:
            spans, stale = self._tap.mark(deliveries)
            if spans:
                self._arm()
                self._settled += zip(repeat(fate), spans)
        if stale is not None:
            raise stale

    def _hand_back(self, delivery: ReceivedMessage) -> None:
        """Hand back a message that the caller could not use: it goes back uncounted when the consumer is closed."""
        with self._lock:
            self._tap.hand_back(delivery)

    def _arm(self) -> None:
        """Have the loop take the report of received and settled messages.  The report comes before everything that the
        loop is asked for later."""
        if not self._armed:
            self._loop.call_soon(self._report)
            self._armed = True

    # -- in the loop

    def _changed(self) -> None:
        """Take the runs that have arrived, or learn that the consumer has failed."""
        runs = self._tap.take()
        with self._lock:
            if self._life.state != "closed":
                # Later runs go back unmarked when the consumer is closed.
                self._runs += runs
            if self._busy:
                self._wake_waiters()

    def _report(self) -> None:
        with self._lock:
            self._armed = False
            self._note()
            handed, self._handed = self._handed, []
            settled, self._settled = self._settled, []
        # Without the lock: a broker in this loop answers at once.
        self._tap.report(handed, settled)

    async def _ack_and_confirm(self, deliveries: Sequence[ReceivedMessage]) -> None:
        self._report()
        with self._lock:
            stale = self._tap.settle(deliveries)
        if stale is None or None in stale.results:
            await self._tap.confirm()
        if stale is not None:
            raise stale

    def _settle_in(self, transaction: Transaction, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages in a transaction, after a report that they were received."""
        self._report()
        with self._lock:
            transaction.settle(deliveries)

    async def _close(self) -> None:
        await self._finish()
        await self._inner.close()

    async def _finish(self) -> None:
        """End the consumer, and report everything to the loop."""
        self._end()
        self._report()

    # -- life

    def _begin(self) -> None:
        """Note that the block is entered; a consumer that was closed meanwhile stays closed."""
        with self._lock:
            self._life.on("open")

    def _end(self) -> None:
        with self._lock:
            self._note()
            self._life.on("close")
            self._run = None
            self._runs.clear()
            self._wake_waiters()
