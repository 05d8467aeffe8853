"""Storing the runs that another node forwards: messages, duplicate ids, and parts of prepared transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from meshq.address import Target
from meshq.broker.ingress._forwarded_run import ForwardedAbout
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.log._release_queue import ReleaseQueue, Views
from meshq.broker.queue._delivery_options import DEFINE, DeliveryOptions
from meshq.broker.queue._run import StoredRun
from meshq.broker.transactions._transaction_transfer import TransactionTransfer, hold_views
from meshq.wire import Forward, Frame, RunView, decode_id_list, pick


class LargeRunSpace(Protocol):
    """The space on the disk for large runs."""

    large_bytes: float

    def check(self, frame: Frame) -> None:
        """Check that a large run can be placed.  Raises: AddressFullError."""


class ForwardedRuns:
    """Stores the runs of links, each once.  ``transactions`` takes the prepared transactions of nodes that leave."""

    def __init__(
        self,
        ingress: Ingress,
        release_queue: ReleaseQueue,
        disk_space: LargeRunSpace,
        transactions: TransactionTransfer,
    ) -> None:
        self._ingress = ingress
        self._release_queue = release_queue
        self._disk_space = disk_space
        self._transactions = transactions

    def store(
        self,
        run: StoredRun,
        frame: Frame,
        header: Forward,
        about: ForwardedAbout,
        *,
        queues: Sequence[int],
        kinds: int,
        link: tuple[bytes, int],
        rows: range,
        then: Callable[[], None],
    ) -> None:
        """Store those ``rows`` of a run that are not stored yet; ``then`` is called when that is durable.

        ``link``: the link, and its number of the last row.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
            UsageError: what the run is for has the name of something else here; nothing changed.
        """
        if about.entry == DEFINE and about.there is not None:
            self._ingress.handed_ids.define(header.address, about.there, link, then)
            return
        if about.entry and about.there is not None:
            found = decode_id_list(RunView(run.content).body(0))
            self._ingress.handed_ids.take(header.address, about.there, found, link, then, durable=run.durable)
            return
        if about.entry:
            part = run if not rows.start else _rest(run, rows)
            target = Target(run.address, about.target or None)
            self._transactions.take(about.entry, about.held, part, target, link)
            self._release_queue.when_all_is_durable(then)
            return
        asked = self._ingress.asked_of_forwarded(run, kinds, about)
        if frame.size_bytes > self._disk_space.large_bytes:
            self._disk_space.check(frame)
        hold: Callable[[Views], None] | None = None
        if about.held and (holder := self._transactions.holder(link[0], about.held)) is not None:
            run.options = (run.options or DeliveryOptions(0))._replace(holder=holder.positions[0])
            hold = partial(hold_views, holder)
        self._ingress.place_forwarded(
            run, queues, link, rows, then, asked, topic=header.topic, there=about.there, hold=hold
        )
        run.verdicts = ()


def _rest(run: StoredRun, rows: range) -> StoredRun:
    """Return the last rows of a run as a run of their own."""
    return StoredRun(
        run.address,
        pick(run.content, rows),
        durable=run.durable,
        producer=run.producer,
        number=run.number + rows.start * run.number_step,
        stamp=run.stamp,
        number_step=run.number_step,
    )
