"""The branches of a store-and-forward queue: addresses with messages that wait while other messages overtake.

A store-and-forward queue is first in, first out, and its numbers are those of the link.  An address that is bounded at
the other node has a credit there; when the credit is used up, its first message would hold up all others.  So from then
on the messages of the address stand in a list of their own, a branch, until all that stood there is stored.  The other
node keeps a mark for each branch, and is told of a branch before anything of another address overtakes it.

The lists take turns by bytes (``FairRound``): in each, order is kept, and between them nobody is promised any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from meshq import limits
from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch
from meshq.broker.queue._dispatch_machine import whole
from meshq.broker.queue._priority_list import PriorityList, divide

if TYPE_CHECKING:
    from meshq.broker.queue._consumer_roster import ConsumerRoster
    from meshq.broker.queue._message_counts import MessageCounts
    from meshq.broker.queue._priority_lists import PriorityLists
    from meshq.broker.queue._run import QueueRun, StoredRun
    from meshq.broker.queue._unfinished_work import UnfinishedWork

#: The key of the messages that are in no branch.
_MAIN: Final = ""

_FIRST: Final = attrgetter("first")


def address_of(run: StoredRun) -> str:
    """Return the address whose credit a run needs; empty: none, because the run is no message or a prepared
    transaction holds it."""
    options = run.options
    return "" if options is not None and (options.entry or options.held) else run.address


class FairRound:
    """Turns by bytes: the ready key with the fewest bytes so far is served next.

    Who was not ready saves nothing up: it stands with who is served at the moment.  So a turn is waited for, at most,
    while each other one is served once.
    """

    __slots__ = ("_had", "_now")

    def __init__(self) -> None:
        # By key: the bytes at which its next turn begins; and those at which the last turn began.
        self._had: dict[str, int] = {}
        self._now = 0

    def choose(self, ready: Sequence[str]) -> str:
        """Return who is next; among equals the first."""
        return min(ready, key=lambda key: max(self._had.get(key, 0), self._now))

    def served(self, key: str, size_bytes: int) -> None:
        """Count a turn."""
        self._now = max(self._had.get(key, 0), self._now)
        self._had[key] = self._now + size_bytes
        if len(self._had) > 2 * limits.LINK_BRANCHES_MAX:
            self._had = {one: had for one, had in self._had.items() if had > self._now}


class _Credit:
    """The credit of an address at the other node: its number, how many messages may be sent in all, and were sent."""

    __slots__ = ("number", "sent", "until")

    def __init__(self, number: int) -> None:
        self.number = number
        self.until = self.sent = 0

    @property
    def left(self) -> int:
        return max(0, self.until - self.sent)


class ForwardBranches:
    """The branches of one store-and-forward queue, and the credits of addresses at the other node."""

    __slots__ = (
        "_branches", "_changes", "_counts", "_credits", "_ending", "_ends", "_lists", "_marks", "_pending", "_roster",
        "_round", "answered",
    )  # fmt: skip

    def __init__(
        self, lists: PriorityLists, roster: ConsumerRoster, counts: MessageCounts, pending: UnfinishedWork
    ) -> None:
        self._lists = lists
        self._roster = roster
        self._counts = counts
        self._pending = pending
        self._branches: dict[str, PriorityList] = {}
        # By address: branches that have no messages left, and end when that is durable; and how many ends there were.
        self._ending: dict[str, int] = {}
        self._ends = 0
        # What the other node has to be told before the next message: addresses, and whether their branch ends.
        self._changes: list[tuple[str, bool]] = []
        self._credits: dict[str, _Credit] = {}
        # By address: up to which number the other node had stored a branch when the link began.
        self._marks: dict[str, int] = {}
        self._round = FairRound()
        # The other node has stored exactly the messages up to this number, besides those of branches; None: there is
        # no link, or the other node has not said it yet.
        self.answered: int | None = None

    @property
    def active(self) -> bool:
        """Whether anything is bounded; otherwise the queue is first in, first out."""
        return bool(self._credits or self._branches or self._changes)

    # -- the link

    def attach(self, marks: Mapping[str, int]) -> None:
        """Have just the branches that the other node has, with their marks.

        A branch that it does not know goes with the others again: with the record of it the other node has lost all
        that came behind, so that the link's mark holds for its messages, too.
        """
        self._marks = dict(marks)
        self._changes.clear()
        unknown = [address for address in self._branches if address not in marks]
        if unknown:
            views = [*self._lists.main.runs(), *(view for one in unknown for view in self._branches.pop(one).runs())]
            self._lists.main.refill(sorted(views, key=_FIRST))
            self._changed()
        self._begin(*marks)

    def detach(self) -> None:
        """Forget the state of one session: the credits, the marks and the untold changes."""
        self._credits.clear()
        self._changes.clear()
        self._ending.clear()
        self._marks.clear()
        self.answered = None

    def granted(self, number: int, address: str, until: int) -> int:
        """Take the credit of an address; ``number`` 0: the address is not bounded.

        Return how many messages are sent in all: less than before may be granted, and more may have been sent.
        """
        if not number:
            self._credits.pop(address, None)
            return until
        known = self._credits.get(address)
        if known is None or known.number != number:
            known = self._credits[address] = _Credit(number)
        known.until = max(until, known.sent)
        return known.until

    def take_changes(self) -> tuple[tuple[str, bool], ...]:
        """Return the changes that the other node has to hear before the next message, once."""
        found, self._changes = tuple(self._changes), []
        return found

    def unsent(self, dispatches: Iterable[Dispatch], tag: int) -> None:
        """Note that the message with a tag, which one of these dispatches has given, was not sent."""
        for dispatch in dispatches:
            if dispatch.tag <= tag < dispatch.tag + dispatch.rows:
                credit = self._credits.get(address_of(dispatch.view.run))
                if credit is not None and credit.number == dispatch.credit:
                    credit.sent -= 1

    def stored(self, view: QueueRun) -> int | None:
        """Return up to which number the other node has stored the messages of a run; None: the node has not said it."""
        return None if self.answered is None else self._marks.get(address_of(view.run), self.answered)

    # -- the lists

    def list_for(self, run: StoredRun) -> PriorityList:
        """Return the list of a run's messages."""
        return self._branches.get(address_of(run), self._lists.main) if self._branches else self._lists.main

    def is_branch(self, view: QueueRun) -> bool:
        """Whether the messages of a run go over a branch."""
        return address_of(view.run) in self._branches

    @property
    def waiting(self) -> dict[str, PriorityList]:
        """The branches that have messages and no credit, by address."""
        return {
            address: one
            for address, one in self._branches.items()
            if one.ready and (credit := self._credits.get(address)) is not None and not credit.left
        }

    def held_beside(self, address: str) -> int:
        """How many messages in branches of other addresses are not on their way."""
        return sum(one.ready for name, one in self._branches.items() if name != address)

    def has_credit(self, address: str) -> bool:
        """Whether a message of an address could go over the link now, if the link itself could take it."""
        credit = self._credits.get(address)
        return credit is None or credit.left > 0

    def stands(self, address: str) -> bool:
        """Whether messages of an address wait in a branch."""
        branch = self._branches.get(address)
        return branch is not None and branch.ready > 0

    @property
    def blocked(self) -> int:
        """How many messages wait because their address is full at the other node."""
        return sum(one.ready for one in self.waiting.values())

    def _begin(self, *addresses: str) -> None:
        begun = [address for address in addresses if address not in self._branches]
        if begun:
            self._branches.update(divide(self._lists.main, lambda view: address_of(view.run), begun))
            self._changed()

    def _find_empty(self) -> None:
        """Have the branches that have no messages left end once it is durable that these are gone.

        They would be there again after a crash, and without a branch the link's mark would speak for them.
        """
        for address, one in self._branches.items():
            if one.head is None and address not in self._ending:
                self._ends += 1
                self._ending[address] = self._pending.emptied[address] = self._ends

    def appended(self, run: StoredRun) -> None:
        """Note that messages of a run have come: their branch does not end."""
        if self._ending:
            self._ending.pop(address_of(run), None)

    def end(self, emptied: Mapping[str, int]) -> None:
        """End branches that have no messages left, which is durable, unless more have come since."""
        ended = [address for address, number in emptied.items() if self._ending.get(address) == number]
        for address in ended:
            del self._branches[address], self._ending[address]
            self._changes.append((address, True))
        if ended:
            self._changed()

    def _changed(self) -> None:
        self._lists.set_branches(self._branches.values())
        self._roster.lists_changed()

    # -- dispatch

    def dispatch(self, budget: int, dispatches: list[tuple[AnyConsumer, Dispatch]]) -> None:
        """Give ready messages to the link, in turns by bytes, at most about ``budget`` messages."""
        consumers = self._roster.consumers
        if not consumers:
            return
        consumer = consumers[0]
        self._find_empty()
        closed: dict[str, None] = {}
        while budget > 0 and consumer.credit() > 0:
            ready = [key for key in (_MAIN, *self._branches) if key not in closed and self._is_open(key)]
            if not ready:
                return
            key = self._round.choose(ready)
            outcome = self._serve(key, consumer, dispatches)
            if outcome == "full":
                return
            if outcome == "waits":
                closed[key] = None
            elif outcome == "served":
                dispatch = dispatches[-1][1]
                self._round.served(key, dispatch.size_bytes + dispatch.rows)
                budget -= dispatch.rows + dispatch.size_bytes // limits.STEP_MESSAGE_BYTES

    def _list(self, key: str) -> PriorityList:
        return self._branches[key] if key else self._lists.main

    def _is_open(self, key: str) -> bool:
        credit = self._credits.get(key) if key else None
        return self._list(key).ready > 0 and (credit is None or credit.left > 0)

    def _serve(self, key: str, consumer: AnyConsumer, dispatches: list[tuple[AnyConsumer, Dispatch]]) -> str:
        """Dispatch the next rows of a list: ``served``; ``begun``: a branch has begun instead; ``full``: the link's
        window has no room; ``waits``: the list waits for its content, or for the watermark."""
        priority_list = self._list(key)
        span = priority_list.next_span()
        if span is None:
            if priority_list.absent is not None:
                self._pending.fault_in(priority_list.absent)
            return "waits"
        view, start, stop, fresh = span
        address = address_of(view.run)
        credit = self._credits.get(address)
        left = stop - start
        if credit is not None:
            left = min(left, credit.left)
            if not left and len(self._branches) < limits.LINK_BRANCHES_MAX:
                self._begin(address)
                self._changes.append((address, False))
                return "begun"
            # More addresses are full than a link has branches: one that is full takes a run more.
            left = left or stop - start
        dispatch = whole(self._counts, priority_list, consumer) if left == stop - start else None
        if dispatch is not None:
            dispatches.append((consumer, dispatch))
        else:
            dealt = self._roster.groups[0].deal([consumer], (view, start, start + left), dispatches)
            if not dealt:
                return "full"
            dispatch = dispatches[-1][1]
            if fresh:
                view.fresh = start + dealt
        if credit is not None:
            dispatch.credit = credit.number
            credit.sent += dispatch.rows
        return "served"
