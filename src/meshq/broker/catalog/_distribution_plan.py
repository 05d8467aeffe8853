"""The distribution of a run when other nodes have queues on its address, too.

Queues of one name on several nodes are one clustered queue: each message goes to one of its members, in a rotation
that goes on from run to run.  On an anycast address a message goes to one name, on a multicast address to every name.

``takers`` judges which queues may get a message, for placing and for explaining.  A filter says True or False of a
message, or None where the message is not known, and so do all conclusions from filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Union

from meshq.broker.records._row_ranges import pieces

if TYPE_CHECKING:
    from meshq.broker.queue._queue_machine import Queue
    from meshq.selector import Filter

#: How messages are dealt among nodes.
MODES: Final = ("off", "strict", "on_demand", "off_with_redistribution")

#: True, False, or None for what is not known.
Known = bool | None

Judge = Callable[[tuple["Filter", ...]], Known]
"""Whether one of some filters lets a message through."""

#: A queue here or elsewhere.
Member = Union["Queue", "RemoteBinding"]

Wants = Callable[[tuple["Filter", ...], int], bool]
"""Whether one of some filters lets a message (a row of the run) through."""


class RemoteBinding(NamedTuple):
    """A queue of another node, as that node has last described it."""

    #: The store-and-forward queue that leads there, and how this link deals.
    forward: Queue
    mode: str
    #: Its number and name there.
    number: int
    name: str
    address: str
    routing: str
    consumers: int
    #: What its consumers want, if each of them wants something in particular.
    filters: tuple[Filter, ...]
    #: What the queue itself takes; None: everything.
    filter: Filter | None = None
    #: How its node is gone: "away", or "left"; empty while it is there.
    gone: str = ""
    #: The parts of runs that its node understands besides those that every node does.
    features: tuple[str, ...] = ()
    #: Whether its own filter is understood here; otherwise nobody here knows what the queue drops.
    understood: bool = True
    #: Whether it outlives its node.
    durable: bool = True
    #: Whether what its consumers want is known here: some may have filters that were not told, or are not understood.
    precise: bool = True
    #: The ids of the nodes from its own to the peer of the link.
    path: tuple[str, ...] = ()
    node_name: str = ""
    #: How its node, or one on the way, is gone by what the peer says; ``gone`` says it of the link, too.
    told: str = ""

    @property
    def distance(self) -> int:
        """The number of links between here and there."""
        return max(1, len(self.path))


class Share(NamedTuple):
    """Messages of a run for one queue here, or through one queue here for queues of a peer."""

    queue: Queue
    rows: range
    remote: tuple[int, ...]


def nearest(bindings: Sequence[RemoteBinding]) -> list[RemoteBinding]:
    """Return each queue once: of several ways to it in one cluster one on which no node is gone, and the shortest."""
    if all(binding.distance == 1 for binding in bindings):
        return list(bindings)
    best: dict[tuple[str, str, str], RemoteBinding] = {}
    for binding in bindings:
        cluster = binding.forward.name.rpartition(".")[0]
        key = cluster, binding.path[0] if binding.path else binding.forward.name, binding.name
        known = best.get(key)
        if known is None or _way(binding) < _way(known):
            best[key] = binding
    chosen = set(map(id, best.values()))
    return [binding for binding in bindings if id(binding) in chosen]


def _way(binding: RemoteBinding) -> tuple[bool, int]:
    return bool(binding.gone), binding.distance


def filters_of(queue: Queue) -> tuple[Filter, ...] | None:
    """Return the filters of a queue's consumers: empty if a consumer has no filter, None without consumers."""
    return queue.roster.filters if queue.roster.consumers else None


def takes(filter: Filter | None, row: int, wants: Wants) -> bool:
    """Whether a queue with this filter takes the message of a row."""
    return filter is None or wants((filter,), row)


class ClusteredQueue:
    """The queues of one name on this node and others."""

    __slots__ = ("local", "name", "next_index", "remotes")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.local: Queue | None = None
        #: In the order of their nodes' links; none whose link deals nothing.
        self.remotes: list[RemoteBinding] = []
        #: Messages dealt so far.
        self.next_index: int = 0

    @property
    def members(self) -> list[Member]:
        """All queues of the name; the rotation begins with the local queue."""
        return [self.local, *self.remotes] if self.local is not None else [*self.remotes]

    @property
    def judged(self) -> bool:
        """Whether a filter decides about the messages."""
        if self.local is not None and (self.local.spec.filter is not None or filters_of(self.local)):
            return True
        return any(remote.filter is not None or remote.filters for remote in self.remotes)

    def filters(self) -> Iterator[Filter]:
        """Iterate over all filters that may judge the messages."""
        if self.local is not None:
            yield from filters_of(self.local) or ()
        for one in (self.local.spec if self.local is not None else None, *self.remotes):
            if one is not None and one.filter is not None:
                yield one.filter
        for remote in self.remotes:
            yield from remote.filters


class Taker(NamedTuple):
    """A queue of a name, and whether it may get a message: the message goes to one of the queues that may."""

    clustered: ClusteredQueue
    member: Member
    gets: Known
    #: Whether it wants the message now: otherwise the message waits there.
    asks: Known = True


def both(first: Known, second: Known) -> Known:
    """Return the conjunction of two verdicts."""
    if first is False or second is False:
        return False
    return True if first and second else None


def either(first: Known, second: Known) -> Known:
    """Return the disjunction of two verdicts."""
    if first or second:
        return True
    return False if first is False and second is False else None


def groups_of(clustered_queues: Sequence[ClusteredQueue], *, anycast: bool) -> list[Sequence[ClusteredQueue]]:
    """The names among which a message goes to one: all of an anycast address, each alone of a multicast one."""
    return [clustered_queues] if anycast else [[clustered] for clustered in clustered_queues]


def takers(group: Sequence[ClusteredQueue], judge: Judge, *, anywhere: bool = False) -> list[Taker]:
    """All queues of a group in the order of their turn, and whether a message may go there.

    First come those that want it now.  If there are none it waits: in a queue here that takes it, or else in one
    elsewhere, or at last in one whose node is gone.  Where it is not known whether anybody wants it now, who would get
    it then is among them, too.  ``anywhere``: where it may wait here, it may as well wait elsewhere.
    """
    strict = any(remote.mode == "strict" for clustered in group for remote in clustered.remotes)
    here = any(clustered.local is not None for clustered in group)
    members = [(clustered, member) for clustered in group for member in clustered.members]
    taking = [_takes(member, judge) for _, member in members]
    asking = [
        both(takes, _asks(member, judge, strict=strict, here=here))
        for takes, (_, member) in zip(taking, members, strict=True)
    ]
    found: list[Known] = [False] * len(members)
    for stage in range(_STAGES):
        anybody: Known = False
        for index, (_, member) in enumerate(members):
            able = taking[index] if _waits(member, anywhere=anywhere) == stage else False
            stands = able if stage else asking[index]
            found[index] = either(found[index], stands)
            anybody = either(anybody, stands)
        if anybody:
            break
    return [Taker(*member, gets, asks) for member, gets, asks in zip(members, found, asking, strict=True)]


#: First those that want a message now; then the places where it waits.
_STAGES: Final = 4


def _waits(member: Member, *, anywhere: bool) -> int:
    """The stage at which a queue takes messages that no queue asks for."""
    if not isinstance(member, RemoteBinding):
        return 1
    if anywhere and not member.gone and member.mode != "off_with_redistribution":
        return 1
    return 3 if member.gone else 2


def _takes(member: Member, judge: Judge) -> Known:
    """Whether a queue takes the message at all."""
    if isinstance(member, RemoteBinding) and member.mode == "off":
        return False
    own = member.filter if isinstance(member, RemoteBinding) else member.spec.filter
    return True if own is None else judge((own,))


def _asks(member: Member, judge: Judge, *, strict: bool, here: bool) -> Known:
    """Whether a queue gets a message that it takes before those where it would only wait."""
    if not isinstance(member, RemoteBinding):
        if strict:
            return True
        filters = filters_of(member)
        return filters is not None and (not filters or judge(filters))
    if member.mode == "strict":
        # A node that is away keeps its share; one that has left has none.
        return member.gone != "left"
    if member.gone or not member.consumers or (here and member.mode == "off_with_redistribution"):
        return False
    return not member.filters or judge(member.filters)


def plan(
    clustered_queues: Sequence[ClusteredQueue], rows: Sequence[int], *, anycast: bool, next_index: int, wants: Wants
) -> list[Share]:
    """Deal the ``rows`` of a run among rings; ``next_index`` says where the rotation among names stands."""
    taken: _Taken = {}
    for group in groups_of(clustered_queues, anycast=anycast):
        asked = _by_name(takers(group, _any))
        if any(clustered.judged for clustered in group):
            standing = dict(asked)
            for index, row in enumerate(rows):
                _deal_one(group, standing, row, next_index + index, wants, taken)
            continue
        for index, (clustered, members) in enumerate(asked):
            part = rows[(index - next_index) % len(asked) :: len(asked)]
            for place, member in enumerate(members):
                _give(member, part[(place - clustered.next_index) % len(members) :: len(members)], taken)
            clustered.next_index += len(part)
    return [share for queue, table in taken.items() for share in _shares_of_queue(queue, table)]


def plan_by_key(
    clustered_queues: Sequence[ClusteredQueue],
    rows: Sequence[int],
    key: Callable[[int, Member], bytes],
    wants: Wants,
) -> list[Share]:
    """Deal the ``rows`` of a run on a multicast address by a key, so that all nodes choose the same queue of a name.

    Of the queues that may have a message the one with the largest ``key`` gets it.
    """
    taken: _Taken = {}
    for clustered in clustered_queues:
        for row in rows:
            found = takers([clustered], partial(_wanted, wants, row), anywhere=True)
            able = [taker.member for taker in found if taker.gets]
            if able:
                _give(max(able, key=partial(key, row)), (row,), taken)
    return [share for queue, table in taken.items() for share in _shares_of_queue(queue, table)]


def _wanted(wants: Wants, row: int, filters: tuple[Filter, ...]) -> bool:
    return wants(filters, row)


#: By queue here, and by queue there (0: it is this one): the rows that it gets.
_Taken = dict["Queue", dict[int, Sequence[int]]]


def _by_name(found: Sequence[Taker]) -> list[tuple[ClusteredQueue, list[Member]]]:
    """The names of which a queue gets the message, and these queues."""
    names: dict[ClusteredQueue, list[Member]] = {}
    for clustered, member, gets, _ in found:
        if gets:
            names.setdefault(clustered, []).append(member)
    return list(names.items())


def _any(filters: tuple[Filter, ...]) -> bool:
    return True


def _deal_one(
    group: Sequence[ClusteredQueue],
    standing: dict[ClusteredQueue, list[Member]],
    row: int,
    next_index: int,
    wants: Wants,
    taken: _Taken,
) -> None:
    """Deal one message: to the next name, and there to the next queue behind the one that got something last.

    Whoever could get a message at all is ``standing`` there; elsewhere it waits, and that is nobody's turn.
    """
    found = takers(group, lambda filters: wants(filters, row))
    asked = _by_name(found)
    if not asked:
        return
    clustered, willing = asked[next_index % len(asked)]
    able = standing.get(clustered, []) if any(taker.asks for taker in found) else []
    for step in range(len(able)):
        member = able[(clustered.next_index + step) % len(able)]
        if any(member is one for one in willing):
            _give(member, (row,), taken)
            clustered.next_index += step + 1
            return
    _give(willing[next_index % len(willing)], (row,), taken)


def _give(member: Member, rows: Sequence[int], taken: _Taken) -> None:
    if not rows:
        return
    queue, number = (member.forward, member.number) if isinstance(member, RemoteBinding) else (member, 0)
    table = taken.setdefault(queue, {})
    table[number] = [*table[number], *rows] if number in table else rows


def _shares_of_queue(queue: Queue, table: dict[int, Sequence[int]]) -> list[Share]:
    """Make the shares of one queue: a message for several queues of a peer stands in it once.

    Each queue of the peer gets its messages in the order of the run: the messages for one set of queues are one share,
    until a queue of the set is also in the set of a later share.
    """
    if len(table) == 1:
        ((number, rows),) = table.items()
        return [Share(queue, part, (number,) if number else ()) for part in pieces(rows)]
    numbers: dict[int, list[int]] = {}
    for number, rows in table.items():
        for row in rows:
            numbers.setdefault(row, []).append(number)
    together: list[tuple[tuple[int, ...], list[int]]] = []
    # The last share of each set of queues, and of each queue.
    last: dict[tuple[int, ...], int] = {}
    newest: dict[int, int] = {}
    for row in sorted(numbers):
        remote = tuple(numbers[row])
        index = last.get(remote, -1)
        if index < 0 or any(newest[number] != index for number in remote):
            index = last[remote] = len(together)
            together.append((remote, []))
            newest.update(dict.fromkeys(remote, index))
        together[index][1].append(row)
    return [Share(queue, part, remote) for remote, rows in together for part in pieces(rows)]
