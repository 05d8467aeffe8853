"""Placing: the one step in which a run gets its position, its numbers, and its duplicate ids are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshq.address import Target
from meshq.broker._definitions import Definitions
from meshq.broker.placing._distribution_plan import Share, takes
from meshq.broker.placing._duplicates import IdChunk
from meshq.broker.placing._ledger import Ledger
from meshq.broker.placing._marks import Marks
from meshq.broker.placing._memory import MemoryBound
from meshq.broker.placing._producers import ProducerMarks
from meshq.broker.placing._router import Address
from meshq.broker.placing._sharing import deal, deal_here, shared, wants_of
from meshq.broker.placing._sifting_plan import placed
from meshq.broker.queue._queue_machine import MARK_BLOCK, Queue
from meshq.broker.queue._run import GONE, GONE_ROWS, READY_ROWS, QueueRun, StoredRun, share_of
from meshq.broker.queue._traits import SPECIAL, RowTraits, Traits, asked_of_moved, divide, read_traits
from meshq.broker.records import (
    PLACED,
    ROUTED,
    ROUTED_TARGETS_MAX,
    RUN,
    PlacedRecord,
    RoutedRecord,
    RoutedTarget,
    RunRecord,
    RunTarget,
    SettledRow,
    encode_placed_head,
    encode_routed_head,
    encode_run_head,
)
from meshq.errors import AddressFullError, NotFoundError, UsageError, invariant
from meshq.wire import KIND_ID, duplicate_ids


class _Part(NamedTuple):
    """A share whose messages ask for the same; ``traits`` None: for nothing, or nobody here cares."""

    queue: Queue
    rows: range
    remote: tuple[int, ...]
    traits: Traits | None

    @property
    def waits(self) -> bool:
        """Whether its messages are not due yet."""
        return self.traits is not None and self.traits.due > 0


class Placer:
    """Puts runs into queues and the journal."""

    def __init__(
        self,
        ledger: Ledger,
        definitions: Definitions,
        marks: Marks,
        producers: ProducerMarks,
        memory: MemoryBound,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._now_ms = now_ms
        self._ledger = ledger
        self._definitions = definitions
        self._diverts = definitions.router.diverts
        self._marks = marks
        self._producers = producers
        self._memory = memory
        #: The highest number of each link that is stored.
        self.links: dict[bytes, int] = {}
        #: Messages that were repeats of known duplicate ids, and messages sent where no queue listens.
        self.duplicates = 0
        self.unrouted = 0

    def place(self, run: StoredRun, target: Target, kinds: int, then: Callable[[], None]) -> None:
        """Place one run; ``then`` is called when it may be confirmed.

        Raises:
            NotFoundError: the address doesn't exist and isn't made on first use; nothing changed.
            AddressFullError: the disk is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        address, queue = self._definitions.address_for(target)
        first, last = run.number, run.number + run.content.rows - 1
        skipped: tuple[int, ...] = ()
        fresh: list[bytes] = []
        if kinds & KIND_ID and address.duplicates.capacity:
            fresh, skipped = _judge(run, address)
            if len(skipped) == run.content.rows:
                self._producers.raise_to(run.producer, first, last)
                self.duplicates += len(skipped)
                self._all_known(then)
                return
        targets = [queue] if queue is not None else address.queues
        diverted = queue is None and address.name in self._diverts.from_address
        special = (kinds & SPECIAL and targets) or (address.rings and queue is None)
        if diverted or special or (address.filtered and any(one.terms.filter is not None for one in targets)):
            rows = _without(run.content.rows, skipped)
            asked = self._asked(run, kinds)
            shares = self._diverted(run, address, rows) if diverted else shared(run, address, queue, rows)
            self._place_shares(run, address, shares, (fresh, skipped), asked, then)
            self._producers.raise_to(run.producer, first, last)
            return
        if not targets:
            self.unrouted += run.content.rows
            self._producers.raise_to(run.producer, first, last)
            self._ledger.release_after(0, (), then)
            return
        position, views = self._enter(run, address, targets, skipped)
        self._producers.raise_to(run.producer, first, last)
        self._book(run, address, (fresh, skipped))
        self._ledger.release_after(position, views, then)

    def _diverted(self, run: StoredRun, address: Address, rows: Sequence[int]) -> list[Share]:
        """Who gets what of a run that is diverted.

        An address gets each message once, however many ways lead there.  Behind a divert only the queues of this node
        get something: the others have their own diverts.

        Raises:
            AddressFullError, JournalBrokenError: a queue can't be made.
        """
        diverts, wants = self._diverts, wants_of(run)
        reached: dict[str, dict[int, None]] = {address.name: dict.fromkeys(rows)}
        shares: list[Share] = []
        for name in diverts.order(address.name):
            here = sorted(reached.get(name, ()))
            kept = dict.fromkeys(here)
            for rule in diverts.leaving(name):
                for row in here:
                    if takes(rule.filter, row, wants):
                        reached.setdefault(rule.forwarding_address, {})[row] = None
                        if rule.exclusive:
                            kept.pop(row, None)
            if not kept:
                continue
            if name == address.name:
                shares += shared(run, address, None, list(kept))
            elif (found := self._address_here(name)) is not None:
                shares += deal_here(run, found, found.queues, list(kept))
        return shares

    def _address_here(self, name: str) -> Address | None:
        """An address, made if it may be; None if nobody is there."""
        try:
            return self._definitions.address_for(Target(name, None))[0]
        except (NotFoundError, UsageError):
            return None

    def _book(self, run: StoredRun, address: Address, judged: tuple[list[bytes], tuple[int, ...]]) -> None:
        """A run was placed: its duplicate ids are known from here on, and it takes memory."""
        fresh, skipped = judged
        self.duplicates += len(skipped)
        if fresh:
            run.has_ids = True
            self._ledger.doom(address.duplicates.add(IdChunk(run.position, fresh)))
        self._memory.used_bytes += run.size_bytes

    def _place_shares(
        self,
        run: StoredRun,
        address: Address,
        shares: list[Share],
        judged: tuple[list[bytes], tuple[int, ...]],
        asked: list[RowTraits] | None,
        then: Callable[[], None],
    ) -> None:
        """Place a run of a client's whose messages don't all go the same way."""
        rows = run.content.rows - len(judged[1])
        taken = placed(shares)
        if not taken:
            self.unrouted += rows
            self._ledger.release_after(0, (), then)
            return
        position, views = self._enter_shares(run, shares, (b"", 0), asked)
        self.unrouted += rows - len(taken)
        if judged[0] and len(taken) < rows:
            # What nobody took was not stored: when it is sent again it is no repeat.
            ids = duplicate_ids(run.content)
            judged = [ids[row] for row in sorted(taken) if ids[row]], judged[1]
        self._book(run, address, judged)
        self._ledger.release_after(position, views, then)

    def _asked(self, run: StoredRun, kinds: int, arrival_ms: int = 0) -> list[RowTraits] | None:
        """What each message of a run asks for; None: nothing."""
        if not kinds & SPECIAL:
            return None
        arrival_ms = arrival_ms or self._now_ms()
        asked = read_traits(run.content, arrival_ms)
        run.traits = Traits(arrival_ms)
        return asked

    def place_forwarded(
        self,
        run: StoredRun,
        queues: Sequence[int],
        link: tuple[bytes, int],
        rows: range,
        then: Callable[[], None],
        asked: list[RowTraits] | None = None,
    ) -> None:
        """Place what another node has dealt to queues of this one; ``link``: whose number, the run's last one.

        What is for a queue that is gone is routed once more, by its address, among the queues here; but not on a
        multicast address, where it was for that queue and no other one, and the others have theirs.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
        """
        router = self._definitions.router
        found = [router.by_number.get(number) for number in queues]
        targets = dict.fromkeys(queue for queue in found if queue is not None and queue.address == run.address)
        shares = [share for queue in targets for share in deal(run, [queue], rows, anycast=True, turn=0)]
        if not targets:
            shares = self._route_here(run, rows)
        if not shares:
            self.unrouted += len(rows)
            self.links[link[0]] = link[1]
            self._ledger.release_after(0, (), then)
            return
        position, views = self._enter_shares(run, shares, link, asked)
        self.unrouted += len(rows) - len(placed(shares))
        self.links[link[0]] = link[1]
        self._memory.used_bytes += run.size_bytes
        self._ledger.release_after(position, views, then)

    def _route_here(self, run: StoredRun, rows: range) -> list[Share]:
        address = self._address_here(run.address)
        if address is None or address.routing == "multicast":
            return []
        return deal_here(run, address, address.queues, rows)

    def place_moved(self, run: StoredRun, target: Target, gone: tuple[SettledRow, ...]) -> bool:
        """Place what leaves one of the queues here; ``gone``: what the same record says of that queue.

        The address comes into being if need be.  Returns whether a record was written.

        Raises:
            UsageError: no queue of an anycast address takes all of it; nothing changed.
            AddressFullError: the disk is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        address, queue = self._definitions.address_of_moved(target)
        queues = [queue] if queue is not None else address.queues
        traits = run.traits
        invariant(traits is not None and traits.origin is not None, "what is moved has an origin")
        assert traits is not None and traits.origin is not None
        asked = asked_of_moved(read_traits(run.content, traits.arrival), traits.origin)
        shares = deal_here(run, address, queues, range(run.content.rows))
        if address.routing == "anycast" and len(placed(shares)) < run.content.rows:
            # A topic may have no subscriber; here somebody counts on a queue.
            raise UsageError(f"no queue of {target.address!r} takes the message")
        if not shares:
            self.unrouted += run.content.rows
            return False
        logged = run.durable and self._ledger.log is not None and any(share.queue.durable for share in shares)
        position, views = self._enter_shares(run, shares, (b"", 0), asked, gone)
        self.unrouted += run.content.rows - len(placed(shares))
        self._memory.used_bytes += run.size_bytes
        self._ledger.release_after(position, views, _nothing)
        return logged

    def asked_of_forwarded(self, run: StoredRun, kinds: int, arrival_ms: int) -> list[RowTraits] | None:
        """What each message of a run from another node asks for; ``arrival_ms``: when the first node took it.

        Raises:
            RemoteProtocolError: its headers can't be read.
        """
        return self._asked(run, kinds, arrival_ms)

    def _enter_shares(
        self,
        run: StoredRun,
        shares: Sequence[Share],
        link: tuple[bytes, int],
        asked: list[RowTraits] | None,
        gone: tuple[SettledRow, ...] = (),
    ) -> tuple[int, list[tuple[Queue, QueueRun]]]:
        """As ``_enter``, for shares that are runs of their own; the log may refuse before anything has changed."""
        parts = _parts(run, shares, asked)
        logged = run.durable and self._ledger.log is not None and any(part.queue.durable for part in parts)
        position = self._write_parts(run, parts, link, gone) if logged else 0
        run.position = position
        views = []
        for queue, rows, remote, traits in parts:
            share = share_of(run, rows)
            if traits is not None:
                share.traits = traits
                if traits.due:
                    views.append((queue, QueueRun(share, 0, remote)))
                    continue
            view = QueueRun(share, queue.number_rows(len(rows)), remote)
            if not (logged and queue.durable):
                position = max(position, self._marks.cover_given(queue))
            elif queue.consumers:
                self._marks.cover_delivered(queue, queue.level_for(share), queue.last, MARK_BLOCK // 2)
            views.append((queue, view))
        run.views = len(views)
        return position, views

    def _write_parts(
        self, run: StoredRun, parts: Sequence[_Part], link: tuple[bytes, int], gone: tuple[SettledRow, ...]
    ) -> int:
        following: dict[Queue, int] = {}
        targets = []
        for part in parts:
            queue, rows, remote, _ = part
            first = 0
            if not part.waits:
                first = following.get(queue, queue.last + 1)
                following[queue] = first + len(rows)
            if queue.durable:
                targets.append(RoutedTarget(queue.number, first, rows, remote))
        if len(targets) > ROUTED_TARGETS_MAX:
            raise AddressFullError(
                f"a run would be {len(targets)} parts in queues; at most {ROUTED_TARGETS_MAX} are kept"
            )
        content = run.content
        head = RunRecord(run.producer, run.number, run.stamp, run.address, (), (), content)
        record = RoutedRecord(link[0], link[1], run.number_step, head, tuple(targets))
        traits = run.traits
        if traits is None:
            return self._ledger.write(ROUTED, [encode_routed_head(record), content.table, content.body])
        placed = PlacedRecord(traits.arrival, traits.origin, gone, record)
        refs = list(dict.fromkeys(row.position for row in gone))
        return self._ledger.write(PLACED, [encode_placed_head(placed), content.table, content.body], refs=refs)

    def _all_known(self, then: Callable[[], None]) -> None:
        # The originals may still wait for their sync: they were placed before now.
        log = self._ledger.log
        self._ledger.release_after(log.last if log is not None else 0, (), then)

    def _enter(
        self, run: StoredRun, address: Address, queues: list[Queue], skipped: tuple[int, ...]
    ) -> tuple[int, list[tuple[Queue, QueueRun]]]:
        """Number the run in its queues and write its record; the log may refuse before anything has changed."""
        rows = run.content.rows
        stride, shares = 1, [(0, queues[0])]
        if len(queues) > 1:
            stride, shares = _shares(address, queues, rows)
        logged = False
        if run.durable and self._ledger.log is not None:
            logged = any(queue.durable for _, queue in shares)
        position = self._write(run, address, shares, (stride, skipped)) if logged else 0
        run.position = position
        views = []
        for start, queue in shares:
            view = QueueRun(run, queue.number_rows(rows))
            if stride > 1:
                keep_rows(view, start, stride)
            if skipped:
                skip_rows(view, skipped)
            if not (logged and queue.durable):
                if (covered := self._marks.cover_given(queue)) > position:
                    position = covered
            elif queue.consumers:
                self._marks.cover_delivered(queue, queue.level_for(run), queue.last, MARK_BLOCK // 2)
            views.append((queue, view))
        if stride > 1 or skipped:
            address.turn = (address.turn + rows) % stride
            views = [(queue, view) for queue, view in views if view.live]
        run.views = len(views)
        return position, views

    def _write(
        self, run: StoredRun, address: Address, shares: list[tuple[int, Queue]], rows: tuple[int, tuple[int, ...]]
    ) -> int:
        stride, skipped = rows
        targets = tuple(
            RunTarget(queue.number, queue.last + 1, start, stride) for start, queue in shares if queue.durable
        )
        content = run.content
        record = RunRecord(run.producer, run.number, run.stamp, address.name, targets, skipped, content)
        return self._ledger.write(RUN, [encode_run_head(record), content.table, content.body])


def _nothing() -> None:
    """Nobody waits for it."""


def _without(count: int, skipped: tuple[int, ...]) -> Sequence[int]:
    """The rows of a run of ``count`` but for some."""
    if not skipped:
        return range(count)
    known = dict.fromkeys(skipped)
    return [row for row in range(count) if row not in known]


def _parts(run: StoredRun, shares: Sequence[Share], asked: list[RowTraits] | None) -> list[_Part]:
    """Divide shares so that the messages of each part ask for the same."""
    traits = run.traits
    if asked is None or traits is None:
        return [_Part(*share, None) for share in shares]
    parts = []
    for share in shares:
        if share.queue.forwards:
            # Whatever they ask for is done where they go.
            parts.append(_Part(*share, None))
        else:
            divided = divide(share.rows, asked, traits.arrival)
            parts += [
                _Part(share.queue, rows, share.remote, each._replace(origin=traits.origin)) for rows, each in divided
            ]
    return parts


def _shares(address: Address, queues: list[Queue], rows: int) -> tuple[int, list[tuple[int, Queue]]]:
    """How several queues share a run: the stride, and each one's first row.

    Multicast: each has all of it.  Anycast: each takes every n-th message, beginning where the last run ended.
    """
    stride = len(queues) if address.routing == "anycast" else 1
    turn = address.turn % stride
    shares = [((index - turn) % stride, queue) for index, queue in enumerate(queues)]
    return stride, [(start, queue) for start, queue in shares if start < rows]


def _judge(run: StoredRun, address: Address) -> tuple[list[bytes], tuple[int, ...]]:
    """The ids of a run that are new to the address, and the rows whose ids are not."""
    ids = duplicate_ids(run.content)
    rows = address.duplicates.fresh_rows(ids)
    if rows is None:
        return [duplicate_id for duplicate_id in ids if duplicate_id], ()
    kept = dict.fromkeys(rows)
    skipped = tuple(row for row in range(len(ids)) if row not in kept)
    return [ids[row] for row in rows if ids[row]], skipped


def keep_rows(view: QueueRun, start: int, stride: int) -> None:
    """Leave only every ``stride``-th row, from ``start`` on, to a queue that shares a run with others."""
    rows = len(view.states)
    kept = len(range(start, rows, stride))
    view.states[:] = GONE_ROWS[:rows]
    view.states[start:rows:stride] = READY_ROWS[:kept]
    view.live = kept


def skip_rows(view: QueueRun, skipped: tuple[int, ...]) -> None:
    """Leave out rows that are repeats."""
    for row in skipped:
        if view.states[row] != GONE:
            view.states[row] = GONE
            view.live -= 1
