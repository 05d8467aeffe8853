"""Who gets which messages of a run when other nodes have queues on its address, too.

Queues of one name form a ring over the nodes: each message goes to one of them, in turn, and the turn goes on from
run to run.  On an anycast address each message goes to one name, on a multicast address to every name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from meshq.broker.queue._rows import pieces

if TYPE_CHECKING:
    from meshq.broker.queue._queue_machine import Queue
    from meshq.selector import Filter

#: How messages are dealt among nodes.
MODES: Final = ("off", "strict", "on_demand")

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


class Share(NamedTuple):
    """Messages of a run for one queue here, or through one queue here for queues of a peer."""

    queue: Queue
    rows: range
    remote: tuple[int, ...]


def filters_of(queue: Queue) -> tuple[Filter, ...] | None:
    """What a queue's consumers want: nothing in particular if one of them has no filter; None: it has none."""
    return queue.filters if queue.consumers else None


def takes(filter: Filter | None, row: int, wants: Wants) -> bool:
    """Whether a queue with this filter takes a message."""
    return filter is None or wants((filter,), row)


def _filter_of(member: Queue | RemoteBinding) -> Filter | None:
    return member.filter if isinstance(member, RemoteBinding) else member.terms.filter


class Ring:
    """The queues of one name."""

    __slots__ = ("local", "name", "remotes", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.local: Queue | None = None
        #: In the order of their nodes' links.
        self.remotes: list[RemoteBinding] = []
        #: Messages dealt so far.
        self.turn = 0

    def members(self, wanted: Callable[[tuple[Filter, ...]], bool]) -> list[Queue | RemoteBinding]:
        """Who may get the next message; ``wanted`` judges the filters of a remote queue's consumers."""
        found: list[Queue | RemoteBinding] = []
        strict = any(remote.mode == "strict" for remote in self.remotes)
        if self.local is not None and (strict or self._wanted_here(wanted)):
            found.append(self.local)
        found += [
            remote
            for remote in self.remotes
            if remote.mode == "strict"
            or (remote.mode == "on_demand" and remote.consumers and (not remote.filters or wanted(remote.filters)))
        ]
        return self._takers(found, wanted)

    def left(self, wanted: Callable[[tuple[Filter, ...]], bool]) -> list[Queue | RemoteBinding]:
        """Where a message goes that nobody asks for: it waits here, or where the only queues that take it are."""
        here = self._takers([self.local], wanted) if self.local is not None else []
        return here or self._takers([remote for remote in self.remotes if remote.mode != "off"], wanted)

    def _takers(
        self, members: Sequence[Queue | RemoteBinding], wanted: Callable[[tuple[Filter, ...]], bool]
    ) -> list[Queue | RemoteBinding]:
        """Those that take the message at all."""
        return [member for member in members if (own := _filter_of(member)) is None or wanted((own,))]

    @property
    def sifted(self) -> bool:
        """Whether one of the queues takes only some messages."""
        here = self.local is not None and self.local.terms.filter is not None
        return here or any(remote.filter is not None for remote in self.remotes)

    def _wanted_here(self, wanted: Callable[[tuple[Filter, ...]], bool]) -> bool:
        filters = filters_of(self.local) if self.local is not None else ()
        return filters is not None and (not filters or wanted(filters))

    @property
    def filtered(self) -> bool:
        """Whether it matters what is in a message."""
        if self.sifted:
            return True
        if self.local is not None and filters_of(self.local):
            return True
        return any(remote.filters and remote.mode == "on_demand" for remote in self.remotes)


def plan(rings: Sequence[Ring], rows: Sequence[int], *, anycast: bool, turn: int, wants: Wants) -> list[Share]:
    """Deal the ``rows`` of a run among rings; ``turn`` says where the rotation among names stands."""
    taken: _Taken = {}
    if anycast:
        asked = [ring for ring in rings if ring.members(_any)] or list(rings)
        if any(ring.sifted for ring in rings):
            for ring, part in _choose(rings, asked, rows, turn, wants):
                _deal(ring, part, wants, taken)
        else:
            for index, ring in enumerate(asked):
                _deal(ring, rows[(index - turn) % len(asked) :: len(asked)], wants, taken)
    else:
        for ring in rings:
            _deal(ring, rows, wants, taken)
    return [share for queue, table in taken.items() for share in _shares(queue, table)]


#: By queue here, and by queue there (0: it is this one): the rows that it gets.
_Taken = dict["Queue", dict[int, Sequence[int]]]


def _choose(
    rings: Sequence[Ring], asked: Sequence[Ring], rows: Sequence[int], turn: int, wants: Wants
) -> list[tuple[Ring, list[int]]]:
    """The name to which each message goes: the next in turn of those asked for that takes it, or else any."""
    chosen: dict[Ring, list[int]] = {ring: [] for ring in rings}
    for index, row in enumerate(rows):

        def wanted(filters: tuple[Filter, ...], row: int = row) -> bool:
            return wants(filters, row)

        start = (turn + index) % len(asked)
        for ring in (*asked[start:], *asked[:start], *rings):
            if ring.members(wanted) or ring.left(wanted):
                chosen[ring].append(row)
                break
    return [(ring, part) for ring, part in chosen.items() if part]


def _any(filters: tuple[Filter, ...]) -> bool:
    return True


def _deal(ring: Ring, rows: Sequence[int], wants: Wants, taken: _Taken) -> None:
    if not ring.filtered:
        members = ring.members(_any) or ring.left(_any)
        for index, member in enumerate(members):
            _give(member, rows[(index - ring.turn) % len(members) :: len(members)], taken)
        ring.turn += len(rows)
        return
    # Whoever could get a message at all stands in the ring; each message goes to the next one there that wants it, and
    # the turn is behind that one.
    standing = ring.members(_any)
    for row in rows:

        def wanted(filters: tuple[Filter, ...], row: int = row) -> bool:
            return wants(filters, row)

        willing = dict.fromkeys(map(id, ring.members(wanted)))
        for step in range(len(standing)):
            member = standing[(ring.turn + step) % len(standing)]
            if id(member) in willing:
                _give(member, (row,), taken)
                ring.turn += step + 1
                break
        else:
            for member in ring.left(wanted)[:1]:
                _give(member, (row,), taken)


def _give(member: Queue | RemoteBinding, rows: Sequence[int], taken: _Taken) -> None:
    if not rows:
        return
    queue, number = (member.forward, member.number) if isinstance(member, RemoteBinding) else (member, 0)
    table = taken.setdefault(queue, {})
    table[number] = [*table[number], *rows] if number in table else rows


def _shares(queue: Queue, table: dict[int, Sequence[int]]) -> list[Share]:
    """No message stands twice in one queue: what is for several queues of a peer goes there once.

    Each of those gets its messages in the order of the run: what is for one set of queues is one share until one of
    them is also in the set of another share.
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
