"""The pins of message groups as one node knows them: a group of a clustered queue is consumed on one node at a time.

A pin belongs to a name, which is a queue and a group.  A node delivers messages of a group only while it *holds* the
pin; what it has of a group that is held elsewhere goes there, and what is of an unknown pin waits until the arbiter of
the name has answered (docs/design/clustered-groups.md).
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

#: A queue and a group.
Name = tuple[str, str]
Value = TypeVar("Value")
#: Ways, and pins that were given up, which are remembered; the oldest are forgotten, and found anew.
WAYS_MAX: Final = 65_536
#: Pins that were not used for so many periods may be released when there are too many.
PERIODS: Final = 4


class PinsMachine:
    """The pins that a node holds, the ones that it knows elsewhere, and the ones that it wants to know."""

    def __init__(self) -> None:
        #: Whether groups are pinned; otherwise each node gives its groups to its own consumers.
        self.active: bool = False
        #: Whether this node leaves: it delivers nothing more of groups, and asks for nothing.
        self.leaving: bool = False
        #: The id of this node.
        self.own: str = ""
        #: The pins that this node holds.
        self.held: dict[Name, None] = {}
        #: The groups of these, by queue.
        self.held_of: dict[str, dict[str, None]] = {}
        #: The nodes that hold others, by their ids.
        self.elsewhere: dict[Name, str] = {}
        #: Names with messages here that have come since the arbiter was asked.
        self.wanted: dict[Name, None] = {}
        #: By queue and node: groups that are held there, and the number of the last message that may go there.
        self.away: dict[str, dict[str, dict[str, int]]] = {}
        #: How many answers of arbiters were taken in.
        self.answers: int = 0
        #: Queues whose messages may have become free to move.
        self.news: dict[str, None] = {}
        #: Other nodes that leave: what is of their groups waits here until they have left.
        self.leavers: frozenset[str] = frozenset()
        #: The nodes to which messages may go.
        self.targets: frozenset[str] = frozenset()
        # The number of the last message of the queue when the arbiter was asked.
        self._asked: dict[Name, int] = {}
        # Where a node without a queue of the name sends a group.
        self._ways: dict[Name, str] = {}
        # Pins that this node gave up: others may send messages of these groups here for a while.
        self._former: dict[Name, None] = {}
        self._takes: Callable[[str], bool] = _nothing
        self._wake: Callable[[], None] | None = None
        # The period in which each pin was used last.
        self._used: dict[Name, int] = {}
        self._period = 0
        # The period in which there were first too many pins; None: there are not.
        self._crowded_since: int | None = None

    def begin(self, own: str, takes: Callable[[str], bool], wake: Callable[[], None]) -> None:
        """``takes`` says which addresses are shared; ``wake`` is called when there is something to ask or to move."""
        self.own, self._takes, self._wake = own, takes, wake

    def end(self) -> None:
        """Ask for nothing any more.  The node is about to end: what is not held here is given to nobody until then."""
        self._wake = None

    def takes(self, address: str) -> bool:
        """Whether the groups of the queues of an address are pinned."""
        return self.active and self._takes(address)

    def switch(self, *, active: bool) -> None:
        """Begin or end to pin groups: nothing is known."""
        self.active = active
        for table in (self.held, self.held_of, self.elsewhere, self.wanted, self.away, self.news):
            table.clear()
        for known in (self._asked, self._ways, self._former, self._used):
            known.clear()

    def may_offer(self, address: str, queue: str, group: str) -> bool:
        """Whether a consumer here may get messages of a group."""
        return not self.takes(address) or ((queue, group) in self.held and not self.leaving)

    def claim(self, address: str, queue: str, group: str) -> bool:
        """Note that messages of a group wait here; return whether a consumer may get them.  If not, the arbiter is
        asked.

        It is asked also if the pin is known elsewhere: another node would not have sent them here if it were still so.
        """
        if not self.takes(address):
            return True
        name = queue, group
        if name in self.held:
            self._used[name] = self._period
            return not self.leaving
        if name in self.elsewhere:
            self._used[name] = self._period
        self.wanted[name] = None
        if self._wake is not None:
            self._wake()
        return False

    def ask(self, name: Name, last: int) -> None:
        """Note that the arbiter is asked for a pin; ``last``: the number of the last message of the queue."""
        self.wanted.pop(name, None)
        self._asked[name] = last

    def open(self) -> list[Name]:
        """The names whose pins the arbiters have to be asked for, or have not said yet."""
        return list({**self._asked, **self.wanted})

    def close(self, name: Name) -> None:
        """Ask for a pin no more: its messages have gone."""
        self.wanted.pop(name, None)
        self._asked.pop(name, None)

    def told(self, name: Name, holder: str) -> bool:
        """Take in who holds a pin; return whether this is the answer for messages that are here."""
        asked = self._asked.pop(name, 0)
        if not self.active:
            return False
        self.answers += 1
        self._former.pop(name, None)
        self._used[name] = self._period
        if holder == self.own:
            self.held[name] = self.held_of.setdefault(name[0], {})[name[1]] = None
            self.wanted.pop(name, None)
            self.elsewhere.pop(name, None)
            self._here(name)
        else:
            self._let_go(name)
            self.elsewhere[name] = holder
            last = max(asked, self._here(name))
            if last:
                self.away.setdefault(name[0], {}).setdefault(holder, {})[name[1]] = last
                self.news[name[0]] = None
        return bool(asked) or holder == self.own

    def give_up(self, name: Name) -> None:
        """Hold a pin no more; nodes with messages of the group ask anew."""
        self._let_go(name)
        self._used.pop(name, None)
        _remember(self._former, name, None)

    def _let_go(self, name: Name) -> None:
        if name in self.held:
            del self.held[name], self.held_of[name[0]][name[1]]
            if not self.held_of[name[0]]:
                del self.held_of[name[0]]

    def was_here(self, name: Name) -> bool:
        """Whether this node gave up a pin, of which others may not know."""
        return name in self._former

    def holder_of(self, name: Name) -> str | None:
        """The node that holds a pin, as far as this node knows; None: it is not known."""
        return self.own if name in self.held else self.elsewhere.get(name)

    def use(self, name: Name) -> str | None:
        """The node elsewhere to which a message of a group goes; None: none is known."""
        holder = self.elsewhere.get(name)
        if holder is not None:
            self._used[name] = self._period
        return holder

    def settled(self, queue: str, groups: Collection[str], holders: Collection[str]) -> Mapping[str, int]:
        """The groups of a queue that are to go to some nodes, and the numbers of their last messages that are;
        ``groups``: all of the queue that have messages.  Some of them may have gone, but not all of a node."""
        known = self.away.get(queue, {})
        for holder, away in list(known.items()):
            # This is asked at each run that may move: the others have their turn.
            while away and (group := next(iter(away))) not in groups:
                del away[group]
            if not away:
                del known[holder]
        if not known:
            self.away.pop(queue, None)
        return ChainMap(*(away for holder, away in known.items() if holder in holders))

    def _here(self, name: Name) -> int:
        """Note that a group is not to go; return the number of its last message that was."""
        known = self.away.get(name[0], {})
        last = 0
        for holder, away in list(known.items()):
            last = max(last, away.pop(name[1], 0))
            if not away:
                del known[holder]
        if not known:
            self.away.pop(name[0], None)
        return last

    def see(self, targets: frozenset[str], members: frozenset[str]) -> list[Name]:
        """Take in which nodes there are, and to which of them messages may go; return the names whose holder has gone,
        of which nothing is known any more."""
        if targets - self.targets:
            # What was to go to a node that could not take it may go now.
            self.news.update(dict.fromkeys(self.away))
        self.targets = targets
        gone = [name for name, holder in self.elsewhere.items() if holder not in members]
        for name in gone:
            self.forget(name)
        return gone

    def forget(self, name: Name) -> None:
        """Forget who holds a pin elsewhere."""
        self.elsewhere.pop(name, None)
        self._used.pop(name, None)
        self._here(name)

    # -- a node without a queue of the name

    def way(self, name: Name) -> str | None:
        """The node to which messages of a group went last."""
        return self._ways.get(name)

    def goes(self, name: Name, node: str) -> None:
        """Note the node to which messages of a group go."""
        _remember(self._ways, name, node)

    # -- idle pins

    def period_over(self, idle_after: float, pins_max: int) -> bool:
        """End a period; return whether to look for idle pins: four times in ``idle_after`` periods, and in each while
        there are more than ``pins_max``."""
        self._period += 1
        if len(self.held) + len(self.elsewhere) <= pins_max:
            self._crowded_since = None
            return idle_after < math.inf and self._period % max(1, int(idle_after) // PERIODS) == 0
        if self._crowded_since is None:
            self._crowded_since = self._period
        return True

    def idle(self, idle_after: float, pins_max: int, busy: Collection[str]) -> tuple[list[Name], int]:
        """Return the pins held here that are idle, and how many of all that are idle are so only because there are too
        many: of these the ones that were not used for longest.  What is known of idle pins elsewhere is forgotten,
        unless messages are under way to its node, one of the ``busy`` ones.
        """
        now, used = self._period, self._used
        free = [name for name in used if name in self.held or self.elsewhere.get(name) not in busy]
        # A pin was used at any time of its period: only when one more is over is it sure to be idle for so long.
        idle = [name for name in free if now - used[name] > idle_after]
        crowded = []
        excess = len(self.held) + len(self.elsewhere) - len(idle) - pins_max
        if excess > 0 and self._crowded_since is not None and now - self._crowded_since >= PERIODS:
            # What was noted before is not looked at so often.
            unused = [name for name in free if PERIODS < now - used[name] <= idle_after]
            crowded = sorted(unused, key=used.__getitem__)[:excess]
        for name in (*idle, *crowded):
            if name not in self.held:
                self.forget(name)
        return [name for name in (*idle, *crowded) if name in self.held], len(crowded)

    def keep(self, name: Name) -> None:
        """Note that there are messages of a group here: its pin is used, if it is known."""
        if name in self.held or name in self.elsewhere:
            self._used[name] = self._period


def _nothing(address: str) -> bool:
    return False


def _remember(table: dict[Name, Value], name: Name, value: Value) -> None:
    table.pop(name, None)
    table[name] = value
    if len(table) > WAYS_MAX:
        del table[next(iter(table))]
