"""The broker's own messages: notifications, and answers of management requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from meshq import limits
from meshq.address import Target
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._filters_at import costly, filters_at
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.queue._run import StoredRun
from meshq.broker.work._closing import Closing
from meshq.broker.work._fair_scheduler import NODE, CostlyScan, FairScheduler
from meshq.errors import AddressFullError, ClosedError, JournalBrokenError, NotFoundError, UsageError
from meshq.wire import Envelope, encode_run


class InternalProducer:
    """Sends messages of this life of the node, which are not durable; no call waits for these."""

    __slots__ = ("_closing", "_fair_scheduler", "_ingress", "_instance", "_last", "_router", "_waiting_bytes")

    def __init__(
        self,
        ingress: Ingress,
        router: Router,
        fair_scheduler: FairScheduler,
        instance: bytes,
        closing: Closing,
    ) -> None:
        self._ingress = ingress
        self._router = router
        self._fair_scheduler = fair_scheduler
        self._instance = instance
        self._closing = closing
        # The number of the last message.
        self._last = 0
        # Of runs that are put to filters, and of those behind them.
        self._waiting_bytes = 0

    def send(
        self,
        target: Target,
        bodies: Sequence[bytes],
        envelopes: Sequence[Envelope],
        stamp_ms: int,
        *,
        counted: bool = True,
        ahead: Callable[[int], None] | None = None,
        lost: Callable[[int], None],
    ) -> None:
        """Place messages, now or when costly filters have judged them.

        ``counted``: whether messages that no queue takes are counted.  ``ahead`` is called with the number of messages
        just before they are placed, ``lost`` with the number that could not be placed later.

        Raises:
            NotFoundError, UsageError: the target does not exist, and can't be created.
            AddressFullError, JournalBrokenError, ClosedError: the address or the disk is full, the disk has failed, or
                the node is ending.
        """
        kinds = 0
        for envelope in envelopes:
            kinds |= envelope.kind
        run = StoredRun(
            target.address,
            encode_run(bodies, envelopes),
            durable=False,
            producer=self._instance,
            number=self._last + 1,
            stamp=stamp_ms,
        )
        self._last += len(bodies)
        place = partial(self._place, run, target, kinds, counted, ahead)
        asked = self._costly(run, target)
        if asked is None and not self._waiting_bytes:
            place()
            return
        if self._waiting_bytes + run.size_bytes > limits.OWN_MESSAGES_WAITING_BYTES_MAX:
            raise AddressFullError(f"messages of the node itself wait for the filters of {target.address!r}")
        self._ingress.prepare(run, kinds)
        self._waiting_bytes += run.size_bytes
        self._wait(run, target, asked, place, lost)

    def _costly(self, run: StoredRun, target: Target) -> CostlyScan | None:
        filters = filters_at(self._router, target) if self._router.sieves else []
        return costly(self._fair_scheduler, NODE, run, filters) if filters else None

    def _wait(
        self,
        run: StoredRun,
        target: Target,
        asked: CostlyScan | None,
        place: Callable[[], None],
        lost: Callable[[int], None],
        *,
        first: bool = False,
    ) -> None:
        then = partial(self._resume, run, target, place, lost)
        # What comes behind it keeps its place.
        self._fair_scheduler.begin(NODE, self, asked or CostlyScan(iter(()), 0), then, first=first)

    def _resume(self, run: StoredRun, target: Target, place: Callable[[], None], lost: Callable[[int], None]) -> None:
        closing = self._closing.why is not None
        asked = None if closing else self._costly(run, target)
        if asked is not None:
            # There are others by now.
            self._wait(run, target, asked, place, lost, first=True)
            return
        self._waiting_bytes -= run.size_bytes
        if closing:
            return
        try:
            place()
        except (NotFoundError, UsageError, AddressFullError, ClosedError, JournalBrokenError):
            lost(run.content.rows)

    def _place(
        self, run: StoredRun, target: Target, kinds: int, counted: bool, ahead: Callable[[int], None] | None
    ) -> None:
        ingress = self._ingress
        if ahead is not None:
            ahead(run.content.rows)
        unrouted = ingress.unrouted
        ingress.place(run, target, kinds, _nothing)
        run.verdicts = ()
        if not counted:
            ingress.unrouted = unrouted


def _nothing() -> None:
    """Do nothing: no call waits for the messages."""
