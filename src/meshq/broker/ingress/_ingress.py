"""Placing: the one step in which a run gets its journal position and its numbers, and its duplicate ids are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Final

from meshq import limits
from meshq.address import TEMPORARY, Target
from meshq.broker.catalog._address_quota import AddressQuota
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._distribution_plan import ClusteredQueue, Share
from meshq.broker.catalog._router import Address
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._distribution import Named, deal, deal_here, goes_apart, rows_without
from meshq.broker.ingress._diverted_shares import diverted_shares
from meshq.broker.ingress._filter_scan_plan import placed
from meshq.broker.ingress._forwarded_places import ForwardedPlaces
from meshq.broker.ingress._forwarded_run import ForwardedAbout, asked_of_forwarded
from meshq.broker.ingress._group_places import GroupPlaces
from meshq.broker.ingress._handed_ids import HandedIds
from meshq.broker.ingress._held_rows import held_from_now
from meshq.broker.ingress._judged_ids import judge_ids
from meshq.broker.ingress._link_branches import LinkBranches
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.ingress._network_copies import Copies, not_had, note_had, note_ways, onward_queues, shorter_shares
from meshq.broker.ingress._producer_sequences import ProducerSequences
from meshq.broker.ingress._record_writer import RecordWriter
from meshq.broker.ingress._rerouting import Rerouting
from meshq.broker.log._duplicates import IdChunk
from meshq.broker.log._release_queue import ReleaseQueue, Views
from meshq.broker.queue._delivery_options import DeliveryOptions, QueueThere, options_of_moved
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._timers import TimerService
from meshq.broker.records import USER_PRODUCERS, SettledRow, UserProducersRecord, encode_user_producers
from meshq.broker.records._row_options import SPECIAL, RowOptions, asked_of_moved, read_options
from meshq.errors import AddressFullError, NotFoundError, UsageError, invariant
from meshq.wire import KIND_ID, RunBytes, duplicate_ids

#: Bytes that a run takes in the journal beside its content and its names, at most: heads; for each message: what is
#: said of ids that leave the window; for each part of it: in which queue it is; for each mark that moves: that.
RUN_RECORD_BYTES: Final = 192
ROW_RECORD_BYTES: Final = 16
PART_RECORD_BYTES: Final = 24
MARK_RECORD_BYTES: Final = 144
#: Bytes of the record that says whose the runs of a producer are, beside the user's name.
OWNER_RECORD_BYTES: Final = 96
#: Marks of one queue: each priority has its own.
_MARKS_MAX: Final = limits.PRIORITY_MAX + 1


class Ingress:
    """Puts runs into queues and the journal."""

    def __init__(
        self,
        release_queue: ReleaseQueue,
        definitions: Definitions,
        producers: ProducerSequences,
        memory: MemoryBound,
        *,
        timers: TimerService,
        event_bus: EventBus,
        warn: Callable[[str, str], None],
    ) -> None:
        """``warn`` is told of an event, with a text."""
        self._timers, self._warn = timers, warn
        self._release_queue = release_queue
        self._definitions = definitions
        self._diverts = definitions.router.diverts
        self._entering = RecordWriter(release_queue, definitions.watermarks, timers.time_of_day)
        #: How far the producers' messages are stored.
        self.producers: ProducerSequences = producers
        self._memory = memory
        #: Finds new queues for messages that wait for a node which has left.
        self.anew: Rerouting = Rerouting(definitions.router, definitions.peers)
        #: Where messages of groups go that are pinned to nodes.
        self.groups: GroupPlaces = GroupPlaces(definitions.router, release_queue.has_entries_for)
        self._copies = Copies(definitions.router)
        self._forwarded = ForwardedPlaces(definitions, self._address_here, event_bus, memory, drop=self.drop)
        #: Branches of links, and the highest number of each link that is stored.
        self.branches: LinkBranches = LinkBranches(release_queue)
        self.links: dict[bytes, int] = self.branches.marks
        #: Takes duplicate ids of nodes that leave.
        self.handed_ids: HandedIds = HandedIds(definitions, release_queue, self.links)
        #: Messages that were repeats of known duplicate ids, and messages sent where no queue listens.
        self.duplicates: int = 0
        self.unrouted: int = 0
        #: Messages that were dropped because their address was full.
        self.dropped: int = 0

    def place(
        self, run: StoredRun, target: Target, kinds: int, then: Callable[[], None], *, weighed: bool = False
    ) -> None:
        """Place one run; ``then`` is called when it may be confirmed.  ``weighed``: ``weigh`` has let it pass just now.

        Raises:
            NotFoundError: the address doesn't exist and isn't made on first use; nothing changed.
            AddressFullError: the disk or the address is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        address, only = self._definitions.address_for(target)
        count = run.content.rows
        first, last = run.number, run.number + count - 1
        skipped: tuple[int, ...] = ()
        fresh: list[bytes] = []
        onward, again = onward_queues(address, kinds) if only is None else [], list[Share]()
        if kinds & KIND_ID and address.duplicates.capacity:
            fresh, skipped = judge_ids(run, address)
            again = shorter_shares(run, address, skipped, onward) if skipped else []
            if len(skipped) == count and not again:
                self.producers.raise_to(run.producer, first, last, run.user)
                self.duplicates += len(skipped)
                self._release_queue.release_after(self._stored, (), then)
                return
        if address.quota is not None and not self._admit(run, address.quota, weighed=weighed):
            self._release_queue.release_after(0, (), then)
            return
        targets = [only] if isinstance(only, Queue) else address.queues
        diverted = only is None and address.name in self._diverts.from_address
        special = kinds & SPECIAL or address.clustered_queues or address.filtered
        copied = self._copies.may_come_again(address, fresh)
        apart = diverted or run.body is not None or (copied and address.had)
        if apart or (special and goes_apart(address, only, targets, kinds)):
            rows = rows_without(count, skipped)
            asked = self._asked(run, kinds)
            shares = self.shares_of(run, address, only, rows, asked)
            wanted = not_had(run, address, shares) if copied else shares
            self._place_shares(run, address, (wanted, again), (fresh, skipped), asked, then)
            if copied:
                had = len(placed(shares)) - len(placed(wanted))
                self.unrouted, self.duplicates = self.unrouted - had, self.duplicates + had
                note_had(run, address, wanted)
            if onward:
                note_ways(run, address, skipped)
            self.producers.raise_to(run.producer, first, last, run.user)
            return
        if not targets:
            self.unrouted += count
            self.producers.raise_to(run.producer, first, last, run.user)
            self._release_queue.release_after(0, (), then)
            return
        if run.durable:
            self.attribute(run)
        position, views = self._entering.enter(run, address, targets, skipped)
        self.producers.raise_to(run.producer, first, last, run.user)
        if fresh or skipped:
            self.book(run, address, fresh, skipped)
        if copied:
            self._copies.note_whole(run, address, targets, skipped)
        self.charge(run, views)
        if address.quota is not None:
            then = address.quota.placed(count - len(skipped), then)
        self._release_queue.release_after(position, views, then)

    def weigh_owner_changes(self, runs: Iterable[StoredRun]) -> int:
        """Return the bytes that records of the users of these runs may take."""
        users = {(run.producer, run.user) for run in runs if run.user != self.producers.user_of(run.producer)}
        return sum(OWNER_RECORD_BYTES + len(user.encode()) for _, user in users)

    def attribute(self, run: StoredRun) -> None:
        """Write the user of a producer's further runs to the journal, if the user has changed.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
        """
        if not run.durable or run.user == self.producers.user_of(run.producer):
            return
        owner_change = UserProducersRecord(run.user, False, False, ((run.producer, 0, True),), ())
        position = self._release_queue.write(USER_PRODUCERS, [encode_user_producers(owner_change)])
        self.producers.assign_user(run.producer, run.user)
        # Only a start from before the next checkpoint reads it, and gets deleted records from there on, too.
        self._release_queue.doom([position])

    def _admit(self, run: StoredRun, quota: AddressQuota, *, weighed: bool) -> bool:
        """Whether an address takes a run; if not, the run is dropped.

        Raises:
            AddressFullError: it has none, and senders are to know.
        """
        rows = run.content.rows
        if quota.policy in ("drop", "fail") and (quota.full or self._memory.scarce):
            if quota.full:
                quota.reached()
            else:
                self._memory.reached(quota.policy)
            if quota.policy == "fail":
                if weighed:
                    # What was placed since it was weighed belongs to the same transaction: it overshoots once.
                    return True
                raise _full(run, quota)
            self.producers.raise_to(run.producer, run.number, run.number + rows - 1, run.user)
            self.drop(quota, rows)
            return False
        return True

    def drop(self, quota: AddressQuota, rows: int) -> None:
        """Count messages that were dropped because their address was full."""
        quota.dropped += rows
        self.dropped += rows

    def charge(self, run: StoredRun, views: Views) -> None:
        """Count a placed run in the used memory, and in the quota of its address."""
        self._memory.use(run.size_bytes)
        quotas = self._definitions.router.quotas
        if quotas and views and (quota := quotas.get(views[0][0].address)) is not None:
            quota.charge(run)

    def weigh(self, run: StoredRun, target: Target, kinds: int) -> int:
        """Return the bytes that the records of a run may take if it is placed now; raise as ``place`` would.

        Raises:
            NotFoundError, AddressFullError, JournalBrokenError: as ``place``; at most its address came into being.
        """
        address, only = self._definitions.address_for(target)
        quota = address.quota
        if quota is not None and quota.policy in ("block", "fail") and (quota.full or self._memory.scarce):
            quota.reached()
            # A transaction that has begun can't be made to wait.
            raise _full(run, quota)
        content = run.content
        size = len(content.table) + len(content.body) + RUN_RECORD_BYTES + ROW_RECORD_BYTES * content.rows
        size += len(target.address.encode()) + len((target.queue or "").encode())
        targets = [only] if isinstance(only, Queue) else address.queues
        diverted = only is None and address.name in self._diverts.from_address
        if not diverted and not goes_apart(address, only, targets, kinds):
            return size + (PART_RECORD_BYTES + MARK_RECORD_BYTES) * len(targets)
        asked = self._asked(run, kinds)
        names = self._diverts.order(address.name) if diverted else [address.name]
        known = self._definitions.router.addresses
        rotating: list[Address | ClusteredQueue] = [
            *filter(None, map(known.get, names)),
            *address.clustered_queues.values(),
        ]
        next_indexes = [(one, one.next_index) for one in rotating]
        rows: Sequence[int] = range(content.rows)
        has_ids = bool(kinds & KIND_ID and address.duplicates.capacity)
        if has_ids:
            rows = rows_without(content.rows, judge_ids(run, address)[1])
        shares = self.shares_of(run, address, only, rows, asked)
        for one, next_index in next_indexes:
            one.next_index = next_index
        counts = self._entering.count_parts(run, shares, asked).values()
        # Runs placed earlier in the same step may make more of its ids known: then it has holes.
        parts = sum(len(share.rows) for share in shares) if has_ids else sum(counts)
        size += PART_RECORD_BYTES * parts + MARK_RECORD_BYTES * sum(min(count, _MARKS_MAX) for count in counts)
        return size + 4 * sum(len(share.remote) * len(share.rows) for share in shares)

    def shares_of(
        self, run: StoredRun, address: Address, only: Named, rows: Sequence[int], asked: list[RowOptions] | None
    ) -> list[Share]:
        """Divide messages among the queues of an address, diverts included."""
        part_groups = self.groups.parting(asked)
        if only is None and address.name in self._diverts.from_address:

            def divide(kept: list[int]) -> list[Share]:
                return self._copies.shares_of(run, address, None, kept, part_groups)

            return diverted_shares(run, address, rows, (self._diverts, self._address_here), divide)
        return self._copies.shares_of(run, address, only, rows, part_groups)

    def _address_here(self, name: str) -> Address | None:
        """Return an address, created on first use if allowed; None if it can't be created."""
        try:
            return self._definitions.address_for(Target(name, None))[0]
        except (NotFoundError, UsageError):
            return None

    def book(self, run: StoredRun, address: Address, fresh: list[bytes], skipped: tuple[int, ...]) -> None:
        """Enter the duplicate ids of a run that was placed."""
        self.duplicates += len(skipped)
        if fresh:
            run.has_ids = True
            self._release_queue.doom(address.duplicates.add(IdChunk(run.position, fresh, durable=run.durable)))

    def _place_shares(
        self,
        run: StoredRun,
        address: Address,
        divided: tuple[list[Share], list[Share]],
        judged: tuple[list[bytes], tuple[int, ...]],
        asked: list[RowOptions] | None,
        then: Callable[[], None],
    ) -> None:
        """Place a run of a client whose messages go to different queues, or at different times.  ``divided``: shares in
        new messages, and in known ones that only go on from here."""
        rows = run.content.rows - len(judged[1])
        shares, again = divided
        taken = placed(shares)
        if not taken and not again:
            self.unrouted += rows
            self._release_queue.release_after(self._stored if address.had else 0, (), then)
            return
        self.attribute(run)
        position, views = self._entering.enter_shares(run, shares + again, (b"", 0), asked)
        self.unrouted += rows - len(taken)
        if judged[0] and len(taken) < rows:
            # Messages that no queue took were not stored: sent again, they are no duplicates.
            ids = duplicate_ids(run.content)
            judged = [ids[row] for row in sorted(taken) if ids[row]], judged[1]
        self.book(run, address, *judged)
        self.charge(run, views)
        if address.quota is not None:
            then = address.quota.placed(len(taken) + len(placed(again)), then)
        self._release_queue.release_after(position, views, then)

    def _asked(self, run: StoredRun, kinds: int) -> list[RowOptions] | None:
        """Return the delivery options of each message of a run; None: there are none."""
        if not kinds & SPECIAL and run.body is None:
            return None
        if run.options is None or not run.verdicts:
            # The options that filters have seen stay valid.
            self.prepare(run, kinds)
        return read_options(run.content, run.options.arrival if run.options is not None else 0)

    def arrived(self) -> DeliveryOptions:
        """Return the options of messages that come out of a stage now."""
        return DeliveryOptions(self._timers.now_ms, taken=self._timers.elapsed_ms, unstaged=True)

    def prepare(self, run: StoredRun, kinds: int) -> None:
        """Set the arrival time of a client's run, if it has delivery options."""
        if kinds & SPECIAL or run.body is not None:
            run.options = DeliveryOptions(self._timers.now_ms, taken=self._timers.elapsed_ms)

    def place_forwarded(
        self,
        run: StoredRun,
        queues: Sequence[int],
        link: tuple[bytes, int],
        rows: range,
        then: Callable[[], None],
        asked: list[RowOptions] | None = None,
        *,
        topic: bool = False,
        there: QueueThere | None = None,
        hold: Callable[[Views], None] | None = None,
    ) -> None:
        """Place messages that another node has sent to queues here, of a ``topic``; ``link``: whose number, the last
        one; ``there``: the one queue that these are for, whatever its filter, made if need be.

        ``hold``: a transaction has acknowledged all of them, and takes them when they become visible.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
            UsageError: another queue has the name of the one that is to be made; nothing changed.
        """
        shares, lost = self._forwarded.shares(run, queues, rows, topic=topic, there=there)
        routed = len(placed(shares))
        if there is None and hold is None:
            shares = self._forwarded.not_had(run, shares)
        repeats = routed - len(placed(shares))
        if hold is None:
            shares = self._forwarded.bounded(run, shares)
        letters = self._forwarded.dead_letters(run, lost) if lost else None
        parts = [(run, shares, asked)] if shares else []
        if letters is not None:
            parts.insert(0, (*letters, asked_of_moved(run.content, 0)))
        # The link's number stands for both.  What no atomic batch holds is placed in an order that loses nothing: after
        # a crash in between dead letters come again.
        size = 2 * self.weigh_moved(run.content)
        together = len(parts) > 1 and size <= self._release_queue.large_bytes
        with self._release_queue.atomic_batch(size) if together else nullcontext():
            for index, (one, places, wishes) in enumerate(parts, 1):
                last = link if index == len(parts) else (b"", 0)
                position, views = self._entering.enter_shares(one, places, last, wishes)
                self.charge(one, views)
                if hold is not None:
                    then = held_from_now(hold, views, then)
                if index == len(parts):
                    then = self._forwarded.counted(run, shares, then)
                self._release_queue.release_after(position, views, then if index == len(parts) else _nothing)
        # What is dropped had a queue.
        self.duplicates += repeats
        self.unrouted += len(rows) - routed - (len(placed(letters[1])) if letters is not None else 0)
        self.links[link[0]] = link[1]
        if not parts:
            self._release_queue.release_after(self._stored if repeats else 0, (), then)
        if lost:
            self._forwarded.tell(run, len(lost), letters)

    def weigh_moved(self, content: RunBytes) -> int:
        """Return the bytes that the record of moved messages may take, for any target."""
        size = len(content.table) + len(content.body) + RUN_RECORD_BYTES + 4 * limits.ADDRESS_BYTES_MAX
        size += (ROW_RECORD_BYTES + PART_RECORD_BYTES) * content.rows
        queues = min(len(self._definitions.router.by_number), limits.ALL_QUEUES_PER_ADDRESS_MAX)
        return size + (PART_RECORD_BYTES + MARK_RECORD_BYTES) * queues

    def place_moved(self, run: StoredRun, target: Target, gone: tuple[SettledRow, ...]) -> bool:
        """Place messages that are moved out of a queue; ``gone``: the rows that the same record removes from it.

        The address is created if need be.  Return whether a record was written.

        Raises:
            UsageError: no queue of an anycast address takes all of it; nothing changed.
            AddressFullError: the disk or the address is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        address, queue = self._definitions.address_of_moved(target)
        if address.quota is not None and address.quota.policy != "page" and address.quota.full:
            if address.quota.policy != "drop":
                raise AddressFullError(f"the address {address.name!r} is full")
            self.drop(address.quota, run.content.rows)
            return False
        queues = [queue] if queue is not None else address.queues
        options = run.options
        invariant(options is not None and options.origin is not None, "what is moved has an origin")
        assert options is not None and options.origin is not None
        asked = asked_of_moved(run.content, options.arrival)
        shares = deal_here(run, address, queues, range(run.content.rows))
        if address.routing == "anycast" and len(placed(shares)) < run.content.rows:
            # A topic may have no subscriber; moved messages must not be lost.
            raise UsageError(f"no queue of {target.address!r} takes the message")
        if not shares:
            self.unrouted += run.content.rows
            return False
        logged = self.place_shares(run, shares, asked, gone)
        self.unrouted += run.content.rows - len(placed(shares))
        return logged

    def takes_moved(self, run: StoredRun, target: Target, rows: Sequence[int]) -> list[int]:
        """Return those rows of a run that a queue would take if ``place_moved`` was called now."""
        address, queue = self._definitions.known_of_moved(target)
        queues = [queue] if queue is not None else address.queues if address is not None else []
        if not queues and (address is None or address.routing == "anycast"):
            # A queue is created, unless it is a gone temporary queue, or another address has a queue of that name.
            gone = address is None and target.address.startswith(TEMPORARY)
            return [] if gone or target.address in self._definitions.router.queues else list(rows)
        anycast = address is None or address.routing == "anycast"
        return sorted(placed(deal(run, queues, rows, anycast=anycast, next_index=0)))

    def place_anew(self, run: StoredRun, waited: tuple[Queue, tuple[int, ...]], gone: tuple[SettledRow, ...]) -> bool:
        """Place messages anew that have ``waited`` in a store-and-forward queue, without the queues of that node.

        Nobody has handled it yet: what it asks for holds.  Returns whether a record was written.

        Raises:
            UsageError: no queue takes all of it; nothing changed.
            AddressFullError: the disk or the address is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        address = self._definitions.router.addresses.get(run.address)
        if address is None or not self.anew.offers(address, waited[0]):
            address, _ = self._definitions.address_of_moved(Target(run.address, None))
        if address.quota is not None and address.quota.policy != "page" and address.quota.full:
            raise AddressFullError(f"the address {address.name!r} is full")
        asked = options_of_moved(run.content, run.options)
        shares = self.anew.shares(waited[0], run, waited[1], address, self.groups.parting(asked))
        if len(placed(shares)) < run.content.rows:
            raise UsageError(f"no queue of {run.address!r} takes the message")
        run.options = run.options._replace(there=None) if run.options is not None else None
        return self.place_shares(run, shares, asked, gone)

    def place_shares(
        self,
        run: StoredRun,
        shares: list[Share],
        asked: list[RowOptions],
        gone: tuple[SettledRow, ...],
        quota: AddressQuota | None = None,
    ) -> bool:
        """Place moved messages in known queues; return whether a record was written, which removes ``gone``, too.

        ``quota``: counts the messages also before they are released.

        Raises:
            AddressFullError: the disk is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        logged = run.durable and self._release_queue.log is not None and any(share.queue.durable for share in shares)
        position, views = self._entering.enter_shares(run, shares, (b"", 0), asked, gone)
        self._copies.forget_moved(run, gone)
        self.charge(run, views)
        then = quota.placed(len(placed(shares)), _nothing) if quota is not None else _nothing
        self._release_queue.release_after(position, views, then)
        return logged

    def asked_of_forwarded(self, run: StoredRun, kinds: int, about: ForwardedAbout) -> list[RowOptions] | None:
        """Return the options of each message of a run from another node; None: there are none.

        Raises:
            RemoteProtocolError: its headers can't be read.
        """
        return asked_of_forwarded(self._timers, run, kinds, about)

    @property
    def _stored(self) -> int:
        """The position at which every earlier placement is stored."""
        return self._release_queue.log.last if self._release_queue.log is not None else 0


def _full(run: StoredRun, quota: AddressQuota) -> AddressFullError:
    return AddressFullError(
        f"the address {run.address!r} has {quota.messages} messages in {quota.total_bytes} bytes and takes no more"
    )


def _nothing() -> None:
    """No producer waits for a confirm."""
