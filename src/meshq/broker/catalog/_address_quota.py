"""The quota of an address, and the credit of its producers when it is full.

Bytes are those of the runs that were sent to the address, until every queue is done with a run; messages are those in
its queues (of a multicast address, in the fullest queue).  A run is taken whole as long as the quota is not used up.

Producers that have to wait are told how many messages they may send in all: their credit.  Unused credit counts as
used; credit can't be taken back, so a producer that waits only for the unused credit of others may send one run.

Links of other nodes get credit of the same quota.  A link that has sent nothing gets little, and what links do not use
is asked back when little is left that nobody was promised: else many nodes that send nothing would have it all.

A run of a multicast address may have left all queues here and wait for other nodes only.  Producers wait for these; a
link must not, for two nodes could wait for each other for ever: for links only what stands here counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from meshq import limits
from meshq.broker.catalog._producer_credit import OpenCredits, ProducerCredit
from meshq.broker.events._event_bus import EventBus
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.notifications import AddressFull
from meshq.settings import AddressSettings
from meshq.wire import COUNTER_MAX

#: A producer that may send as much as it likes.
UNLIMITED: Final = COUNTER_MAX
#: The part of the free quota that one producer gets as credit, at most; and a link that has sent nothing yet.
SHARE: Final = 4
UNUSED_SHARE: Final = 16
#: What a message is taken to need as long as the address holds none from which that could be seen.
MESSAGE_BYTES_GUESS: Final = limits.KIB


#: When an address is paged, that is done down to such a part of its bound.
PAGE_TO: Final = 3 / 4
#: If that was not possible, it is tried again when so much of the bound has come on top.
GROWTH_SHARE: Final = 16
#: How many runs of a queue are looked at to see how many bytes it has.
_SAMPLE_RUNS: Final = 128


class AddressQuota:
    """The quota of one address: its use, its policy, and its producers."""

    __slots__ = (
        "_credits",
        "_event_bus",
        "_goal",
        "_name",
        "_press",
        "_reserved",
        "_routing",
        "_slack",
        "body_bytes",
        "bytes",
        "dropped",
        "max_bytes",
        "max_messages",
        "policy",
        "pressed",
        "queues",
        "said_full",
        "unreleased",
    )  # fmt: skip

    def __init__(
        self, name: str, routing: str, queues: Sequence[Queue], *, event_bus: EventBus, press: Callable[[], None]
    ) -> None:
        """``press`` has something paged soon."""
        self._name = name
        self._routing = routing
        self._event_bus = event_bus
        self._press = press
        self.queues: Sequence[Queue] = queues
        #: ``page``, ``block``, ``drop`` or ``fail``.
        self.policy: str = "page"
        self.max_bytes: float = math.inf
        self.max_messages: float = math.inf
        #: Bytes of memory of the runs that were sent here.
        self.bytes: int = 0
        #: Bytes of the bodies of these that lie elsewhere: they count for the bound, but are not paged.
        self.body_bytes: int = 0
        #: Something of it has to be paged.
        self.pressed: bool = False
        #: It has reached its bound, and that was reported.
        self.said_full: bool = False
        # How many bytes it may have in memory, by the messages that came last; and how many more before it is paged
        # again, when nothing could be.
        self._goal = math.inf
        self._slack = 0.0
        #: Messages that were placed and are in no queue yet.
        self.unreleased: int = 0
        #: Messages that were dropped because it was full.
        self.dropped: int = 0
        self._credits = OpenCredits()
        # What producers and links were promised and have not sent.
        self._reserved = 0

    @property
    def limited(self) -> bool:
        """Whether bytes or messages are bounded."""
        return self.max_bytes < math.inf or self.max_messages < math.inf

    @property
    def blocks(self) -> bool:
        """Whether producers wait when it is full."""
        return self.policy == "block" and self.limited

    @property
    def waiting(self) -> int:
        """Producers that wait here; links of other nodes are not counted."""
        return self._credits.waiting_producers

    @property
    def links_wait(self) -> bool:
        """Whether a link of another node waits for room here."""
        return self._credits.first_link is not None

    def _holds_back(self, credit: ProducerCredit) -> bool:
        """Whether a producer, or a link, waits when it is full."""
        return self.blocks or (credit.link and self.policy == "fail" and self.limited)

    @property
    def idle(self) -> bool:
        """Whether no producer has credit of this quota."""
        return not self._credits

    @property
    def messages(self) -> int:
        """Messages of the address."""
        held = [
            queue.counts.ready + queue.counts.unacked + queue.counts.delayed + queue.scheduled.messages
            for queue in self.queues
        ]
        if self._routing == "multicast":
            return max(held, default=0) + self.unreleased
        return sum(held) + self.unreleased

    @property
    def total_bytes(self) -> int:
        """Bytes of the address, in memory and elsewhere."""
        return self.bytes + self.body_bytes

    @property
    def full(self) -> bool:
        """Whether the quota is used up."""
        return self.total_bytes >= self.max_bytes or (
            self.max_messages < math.inf and self.messages >= self.max_messages
        )

    def rule(self, settings: AddressSettings, *, pages: bool) -> None:
        """Apply new settings; ``pages``: there is a disk for messages that don't fit in memory."""
        self.policy = settings.full_policy if pages or settings.full_policy != "page" else "block"
        self.max_bytes, self.max_messages = settings.max_size_bytes, settings.max_size_messages
        for credit in self._credits:
            if not self._holds_back(credit):
                self._credits.serve(credit)
                if credit.until != UNLIMITED:
                    credit.extend(UNLIMITED)
            elif credit.until == UNLIMITED and credit.link:
                # It waits once it has answered.
                credit.until = credit.count
                credit.ask(credit.count)
            elif credit.until == UNLIMITED:
                credit.extend(credit.count)
                self._credits.wait(credit)
        self._reserved = sum(credit.promised for credit in self._credits if self._holds_back(credit))
        self.less()

    def charge(self, run: StoredRun) -> None:
        """Count a run that was placed."""
        run.quota = self
        self.bytes += run.size_bytes
        if run.body is not None:
            self.body_bytes += run.body.size_bytes
        if self.limited and self.policy == "page":
            self._goal = min(self.max_bytes, self.max_messages * run.size_bytes / run.content.rows)
            if self.bytes > self._goal + self._slack:
                self.pressed = True
                self.reached()
                self._press()

    def reached(self) -> None:
        """Report that the quota is used up: once, until some of it is free again."""
        if not self.said_full:
            self.said_full = True
            self._event_bus.emit(AddressFull, address=self._name, policy=self.policy)

    @property
    def excess(self) -> int:
        """Bytes that have to leave memory."""
        return max(0, self.bytes - int(self._goal * PAGE_TO)) if self._goal < math.inf else 0

    def relieved(self, left: int) -> None:
        """Note that runs were paged; ``left``: the bytes that could not be paged."""
        self.pressed = False
        self._slack = max(0, self.bytes - self._goal) + self._goal / GROWTH_SHARE if left > 0 else 0

    def freed_body(self, size_bytes: int) -> None:
        """Free the bytes of a body that lies elsewhere; ``freed`` follows."""
        self.body_bytes -= size_bytes

    def freed(self, size_bytes: int) -> None:
        """Free bytes of a run that is gone, or takes less memory."""
        self.bytes -= size_bytes
        if self.said_full:
            self.said_full = self.full
        if self._credits.first is not None:
            self.less()

    def recount(self, runs: Iterable[StoredRun]) -> None:
        """Count the runs that the queues had before the address was bounded."""
        for run in runs:
            if run.quota is None:
                self.charge(run)

    def placed(self, rows: int, then: Callable[[], None]) -> Callable[[], None]:
        """Count messages that are placed; return the function to call, instead of ``then``, when these are released."""
        self.unreleased += rows

        def released() -> None:
            self.unreleased -= rows
            # They need not be in a queue of this address: a divert has taken them, or their queue is gone.
            if self.said_full:
                self.said_full = self.full
            if self._credits.first is not None:
                self.less()
            then()

        return released

    # -- producers that wait

    def open(self, count: int, tell: Callable[[int], None], *, link: bool = False) -> ProducerCredit:
        """Return the first credit of a producer, or of a ``link``, that has sent ``count`` messages."""
        credit = ProducerCredit(self, count, tell, link=link)
        line = self._credits
        first = line.first is None or (link and line.first_link is None)
        line.add(credit)
        if not self._holds_back(credit):
            credit.until = UNLIMITED
        elif first and (offer := self._offer(credit)):
            credit.until, credit.step = count + offer, offer
            self._reserved += offer
        else:
            self._wait(credit)
        return credit

    def _wait(self, credit: ProducerCredit) -> None:
        self._credits.wait(credit)
        if self.full:
            self.reached()

    def sent(self, credit: ProducerCredit, count: int) -> None:
        """Note a run of a producer, and extend the producer's credit if possible."""
        before = credit.promised
        credit.count = count
        if not self._holds_back(credit):
            return
        after = credit.promised
        self._reserved -= before - after
        if credit.asked or after > credit.step // 2:
            return
        offer = self._offer(credit) if self._credits.first is None else 0
        if offer and (offer > after or not after):
            self._grant(credit, offer)
        elif not after:
            self._wait(credit)
            if credit.link:
                # Producers may wait for other nodes.
                self.less()

    def kept(self, credit: ProducerCredit, freed: int) -> None:
        """Free the credit of ``freed`` messages that a link does not keep: it was asked for that, and has answered."""
        self._reserved -= freed
        credit.step = credit.promised
        if not credit.promised:
            self._wait(credit)
        self.less()

    def close(self, credit: ProducerCredit) -> None:
        """Give the credit of a closed producer back."""
        self._credits.remove(credit)
        if self._holds_back(credit):
            self._reserved -= credit.promised
            self.less()

    def less(self) -> None:
        """Extend the credit of waiting producers, as far as the quota allows."""
        while (credit := self._credits.first) is not None:
            offer = self._offer(credit)
            link = self._credits.first_link
            if not offer and link is not None and not credit.link:
                credit, offer = link, self._offer(link)
            if not offer:
                return
            self._credits.serve(credit)
            self._grant(credit, offer)

    def _grant(self, credit: ProducerCredit, offer: int) -> None:
        self._reserved += offer - credit.promised
        credit.step = offer
        credit.extend(credit.count + offer)

    def _offer(self, credit: ProducerCredit) -> int:
        """Return how many messages a producer, or a link, may get as credit; unused credit of links is asked back when
        little is left."""
        if self.policy not in ("block", "fail") or not self.limited:
            return 0
        messages = self.messages
        free = self.max_messages - messages
        if self.max_bytes < math.inf:
            total: float = self.total_bytes
            if credit.link and total >= self.max_bytes:
                total = min(total, self._bytes_here())
            each = total / messages if messages and total else MESSAGE_BYTES_GUESS
            free = min(free, (self.max_bytes - total) / each) if total < self.max_bytes else 0
        if free <= 0:
            return 0
        quota = free - self._reserved
        if quota * SHARE < free:
            self._ask_back(credit)
        share = UNUSED_SHARE if credit.link and not credit.count else SHARE
        return int(min(limits.PRODUCER_WINDOW_MESSAGES, max(1, quota // share)))

    def _ask_back(self, needy: ProducerCredit) -> None:
        """Ask the other links for their unused credit; each keeps one message."""
        for credit in self._credits.links:
            if credit is not needy and not credit.asked and min(credit.until, credit.told) > credit.count + 1:
                credit.ask(credit.count + 1)

    def _bytes_here(self) -> float:
        """Return about how many bytes stand in the queues; other runs of the address wait for other nodes only."""
        held = []
        for queue in self.queues:
            sample = [view.run for view in islice(queue.lists.walk(), _SAMPLE_RUNS)]
            size = sum(run.size_bytes + (run.body.size_bytes if run.body is not None else 0) for run in sample)
            held.append(size * (queue.lists.live_runs + len(queue.scheduled)) / len(sample) if sample else 0)
        here = max(held, default=0) if self._routing == "multicast" else sum(held)
        return here + self.unreleased * MESSAGE_BYTES_GUESS


def is_refused(quota: AddressQuota | None, *, scarce: bool, together: bool = False) -> bool:
    """Whether an address refuses or drops every run now; ``scarce``: the node's memory is.

    ``together``: the run is one of a transaction, which is weighed before any of it is dropped.
    """
    policies = ("block", "fail") if together else ("drop", "fail")
    return quota is not None and quota.policy in policies and (quota.full or scarce)
