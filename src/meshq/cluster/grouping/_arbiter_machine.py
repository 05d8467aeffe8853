"""The arbiter of message groups: for each name, a queue and a group, one node says which node consumes it.

The arbiter of a name is the member whose id, hashed with the name, gives the highest number.  It gives a pin only if
all other members have *introduced* themselves, knowing members of which it is the arbiter of the name, too: each has
told it the pins that it knows of, and does so anew whenever the members are others.  So two nodes that have met never
give one pin twice (docs/design/clustered-groups.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

#: A queue and a group.
Name = tuple[str, str]

#: What is said of a name: its pin is wanted; it is wanted for another node, as this one has nobody who consumes it; the
#: node holds it; the node knows it, having been its arbiter; the node holds it no more; the node that has it has no
#: queue for its messages.
WANT: Final = "want"
MOVE: Final = "move"
HOLD: Final = "hold"
KNOW: Final = "know"
FREE: Final = "free"
LOST: Final = "lost"
KINDS: Final = (WANT, MOVE, HOLD, KNOW, FREE, LOST)
#: Ended lives of a node that are remembered: what comes late from one of them counts no more.
_LIVES: Final = 16
#: Members that a node knew, with all that have gone since, beyond which it has to introduce itself anew.
KNOWN_MAX: Final = 64


class Said(NamedTuple):
    """A sentence of a node about a name; ``node``: the one which is to have the pin, or has it."""

    kind: str
    queue: str
    group: str
    node: str = ""


class Sender(NamedTuple):
    """The sender of a letter: a node, the life of the node, and the number of the letter in that life."""

    node: str
    instance: str
    serial: int


def arbiter_of(name: Name, members: Collection[str]) -> str:
    """The node that decides about a name; all who know the same members find the same one."""
    about = f"{len(name[0])} {name[0]} {name[1]}".encode()
    return max(members, key=lambda member: (blake2b(about, key=member.encode()[:64], digest_size=8).digest(), member))


class ArbiterMachine:
    """The pins of which a node is the arbiter, or was."""

    def __init__(self, own: str, pins_max: float = math.inf) -> None:
        """``pins_max``: when it has more for each member, it asks these which of them they hold."""
        self._own = own
        self._pins_max = pins_max
        #: The nodes of the cluster that are there or may come back, and this one.
        self.members: frozenset[str] = frozenset({own})
        #: Those of them that are linked: what an earlier life has heard of them is not enough.
        self.linked: frozenset[str] = frozenset()
        #: Those that have left or are down, as far as this life has seen it.
        self.gone: frozenset[str] = frozenset()
        self.pins: dict[Name, str] = {}
        #: Names whose pins have changed since the last look: they are to be kept.
        self.changed: dict[Name, None] = {}
        # Pins that were confirmed by their holders in this life; others are as they were before.
        self._sure: dict[Name, None] = {}
        # While the pins are counted: those of which nobody has said since that they are held; and the nodes that have
        # not told anew what they hold, with whether they have begun to.
        self._uncounted: dict[Name, None] = {}
        self._counting: dict[str, bool] = {}
        # Pins that have got a holder since the last look at how many there are: the first message may be under way.
        self._fresh: dict[Name, None] = {}
        # The pins that the last count has left: they are counted anew when there are twice as many.
        self._left = 0
        #: How often all pins were counted, in this life.
        self.counted: int = 0
        # The members that each node knew when it had told all that it knows, and those that have gone since.
        self._introduced: dict[str, frozenset[str]] = {}
        # Nodes that have begun to introduce themselves, and the members of which they said so.
        self._beginning: dict[str, frozenset[str]] = {}
        # The letters of each node: its life, its earlier lives, and the number of the last one.
        self._letters: dict[str, tuple[list[str], int]] = {}
        #: How often, in this life: pins that were ``given``, and those that were ``given_up`` because their node went.
        self.given: int = 0
        self.given_up: int = 0
        # The members that only an earlier life of this node has heard.
        self._remembered: dict[str, None] = {}
        #: How many of the given pins were given while there were such members.
        self.remembered: int = 0

    def see(self, members: Iterable[str]) -> bool:
        """Take in the members; pins of others are given up.  Return whether the members have changed."""
        now = frozenset(members) | {self._own}
        if now == self.members:
            return False
        gone = self.members - now
        self.members = now
        self.gone = (self.gone | gone) - now
        for name in [name for name, holder in self.pins.items() if holder in gone]:
            self._set(name, None)
            self.given_up += 1
        for node in gone:
            self._introduced.pop(node, None)
            self._beginning.pop(node, None)
            self._remembered.pop(node, None)
            self._counting.pop(node, None)
        if gone:
            # Who went may have given pins to those that are still there, of which they have to tell.
            self._introduced = {
                node: known | gone for node, known in self._introduced.items() if len(known | gone) <= KNOWN_MAX
            }
        return True

    def restore(self, name: Name, holder: str) -> None:
        """Take up a pin that was kept."""
        self.pins[name] = holder

    def restore_introduced(self, members: frozenset[str], lives: Mapping[str, str]) -> None:
        """Take up introductions of nodes to an earlier life of this node, which knew the same members.

        ``members``: those that they knew.  All that a node was given since is among the pins that were kept.

        ``lives``: the life of each in which it did so.  One that has begun another life has to do so anew, if it says
        anything.
        """
        for node, life in lives.items():
            self._introduced[node] = members
            self._letters[node] = [life], 0
            self._remembered[node] = None

    def introduced(self) -> dict[frozenset[str], dict[str, str]]:
        """The members that have introduced themselves, each with its life, by the members that they knew.

        Also those that are being counted: what they hold is known, and only what they do not hold is not.
        """
        found: dict[frozenset[str], dict[str, str]] = {}
        for node, known in self._introduced.items():
            found.setdefault(known, {})[node] = self._letters[node][0][-1]
        return found

    @property
    def ready(self) -> bool:
        """Whether all other members have introduced themselves and knew the same members: each new pin may be given."""
        others = self.members - {self._own}
        return not any(node in self._remembered and node in self.linked for node in others) and all(
            self._introduced.get(node) == self.members for node in others
        )

    def _may_give(self, name: Name) -> bool:
        """Whether the introductions of all other members hold for a name, so that a new pin of the name may be given.

        A node that knew other members counts as well, if this one was the arbiter of the name among these: it has said
        what it held, and can have got the pin from nobody else since.
        """
        return self._has_told(name, self.members - {self._own})

    def _has_told(self, name: Name, nodes: Iterable[str]) -> bool:
        """Whether the introductions of some nodes hold for a name.  Of linked ones only those to this life do."""
        known = set()
        for node in nodes:
            if not self._is_introduced(node):
                return False
            known.add(self._introduced[node])
        return all(self._holds(name, members) for members in known)

    def _is_introduced(self, node: str) -> bool:
        return node in self._introduced and not (node in self._remembered and node in self.linked)

    def _holds(self, name: Name, members: frozenset[str]) -> bool:
        """Whether the introduction of a node that knew these members holds for a name."""
        return members == self.members or arbiter_of(name, members) == self._own

    def silent(self, name: Name) -> list[str]:
        """The members whose introductions do not hold for a name: no new pin of the name is given."""
        return [
            node
            for node in sorted(self.members - {self._own})
            if not self._is_introduced(node) or not self._holds(name, self._introduced[node])
        ]

    def has_heard(self, node: str) -> bool:
        """Whether the introduction of a node was heard since the start of the arbiter."""
        return node in self._introduced and node not in self._remembered

    def lacking(self) -> list[str]:
        """The members that have to introduce themselves, for the first time or anew."""
        return [
            one
            for one in self.members
            if one != self._own and (self._introduced.get(one) != self.members or one in self._counting)
        ]

    def known(self, names: Iterable[Name]) -> list[Said]:
        """Return a sentence about each of the named pins, for the new arbiter of their names."""
        return [Said(KNOW, *name, self.pins[name]) for name in names if name in self.pins]

    def passed_on(self, said: Iterable[Said]) -> set[str]:
        """The arbiters of names of which this node was told who has the pin, as if it were the arbiter itself: it has
        to tell these."""
        names = {(one.queue, one.group) for one in said if one.kind in (HOLD, KNOW)}
        return {arbiter_of(name, self.members) for name in names & self.pins.keys()} - {self._own}

    def forget(self, said: Iterable[Said]) -> None:
        """Forget pins that their new arbiter has taken in, unless this node is their arbiter again."""
        for one in said:
            name = one.queue, one.group
            if self.pins.get(name) == one.node and arbiter_of(name, self.members) != self._own:
                self._set(name, None)

    # -- what is said to it

    def hear(
        self,
        sender: Sender,
        members: frozenset[str],
        said: Sequence[Said],
        *,
        begins: bool = False,
        complete: bool = False,
    ) -> list[str]:
        """Take in a letter; return for each name the node that holds its pin; empty: it is not known yet.

        ``members``: those that the sender knows.  ``begins``: from this letter on it tells all that it knows.
        ``complete``: with this one it has told all.  That counts only if all was heard from the beginning on, what was
        told before the node was gone for a while being forgotten, and if it holds no pin that another node has.
        """
        if sender.node not in self.members or not self._is_new(sender):
            return [""] * len(said)
        if begins:
            self._beginning[sender.node] = members
            if sender.node in self._counting:
                self._counting[sender.node] = True
        answers = [self._one(sender.node, one) for one in said]
        if any(one.kind == HOLD and node != sender.node for one, node in zip(said, answers, strict=True)):
            # It is to give the pin up.  Until it says what it holds then, it may not have had the answer.
            self._introduced.pop(sender.node, None)
            self._beginning.pop(sender.node, None)
        if complete and self._beginning.pop(sender.node, None) == members:
            self._introduced[sender.node] = members
            self._remembered.pop(sender.node, None)
            if self._counting.get(sender.node):
                del self._counting[sender.node]
                self._drop_uncounted(sender.node)
                self._left = len(self.pins)
        return answers

    def own(self, said: Sequence[Said]) -> list[str]:
        """Hear this node itself, as a letter of another one; return the same."""
        return [self._one(self._own, one) for one in said]

    # -- pins that nobody holds

    def count(self, held: Collection[Name]) -> bool:
        """Begin to count the pins if there are too many; return whether all members have to introduce themselves anew.

        A pin that was given to a node at another one's request is not held there before a message of the group has
        come, which may have gone meanwhile.  Where most are held, the next count is made when there are twice as many.
        This is called from time to time, and pins that were given since the last call are not counted: the messages for
        which they were given may be under way.  ``held``: the pins that this node holds.
        """
        fresh, self._fresh = self._fresh, {}
        enough = self._pins_max * len(self.members)
        if len(self.pins) - len(fresh) <= max(enough, 2 * self._left) or self._counting:
            self._left = self._left if len(self.pins) > enough else 0
            return False
        self.counted += 1
        self._uncounted = {name: None for name in self.pins if name not in fresh}
        self._counting = dict.fromkeys(self.members - {self._own}, False)
        for name in held:
            self._uncounted.pop(name, None)
        self._drop_uncounted(self._own)
        return True

    def _drop_uncounted(self, node: str) -> None:
        """Give up pins that a node has, and does not hold."""
        for name in [name for name in self._uncounted if self.pins.get(name) == node]:
            self._set(name, None)

    def doubt(self) -> None:
        """Give no pin before all members have introduced themselves anew."""
        self._introduced.clear()
        self._beginning.clear()
        self._remembered.clear()

    def _is_new(self, sender: Sender) -> bool:
        lives, serial = self._letters.get(sender.node, ([], 0))
        if sender.instance in lives[:-1] or (lives and lives[-1] == sender.instance and sender.serial <= serial):
            # It was given up, and what it asked for was asked for anew.
            return False
        if not lives or lives[-1] != sender.instance:
            lives = [*lives[1 - _LIVES :], sender.instance]
            self._introduced.pop(sender.node, None)
            self._beginning.pop(sender.node, None)
            self._remembered.pop(sender.node, None)
        self._letters[sender.node] = lives, sender.serial
        return True

    def _one(self, node: str, said: Said) -> str:
        name = said.queue, said.group
        if said.kind == HOLD:
            return self._hold(node, name)
        if said.kind == FREE:
            if self.pins.get(name) == node:
                self._set(name, None)
        elif said.kind == LOST:
            self._lose(name, said.node)
        elif said.kind == KNOW:
            # The sender was the arbiter after this one was: of what an earlier life has given it knows more.
            if name not in self._sure and self.pins.get(name) != said.node and said.node in self.members:
                self._set(name, said.node)
        else:
            return self._want(node, name, said.node, moves=said.kind == MOVE)
        return ""

    def _hold(self, node: str, name: Name) -> str:
        known = self.pins.get(name)
        if known is None or known not in self.members or name not in self._sure:
            # What is held counts more than what was known before.
            known = node
            self._set(name, node)
        self._sure[name] = None
        self._uncounted.pop(name, None)
        return known

    def _lose(self, name: Name, holder: str) -> None:
        """Have the holder of a pin tell its pins anew.  It has no queue for messages, and may not know of the pin."""
        if self.pins.get(name) == holder and holder in self.members:
            self._uncounted[name] = None
            if holder != self._own:
                self._counting[holder] = False

    def _want(self, node: str, name: Name, wanted: str, *, moves: bool) -> str:
        if arbiter_of(name, self.members) != self._own:
            return ""
        known = self.pins.get(name)
        if known is not None and known not in self.members:
            known = None
        if known is not None and known != node:
            return known
        if known is not None and not moves:
            # It has begun anew, or its answer was lost.
            if name not in self._sure and not self._has_told(name, self.linked & self.members):
                # This arbiter has begun anew: another one may have given the pin meanwhile, in its place.
                return ""
            self._sure[name] = None
            self._uncounted.pop(name, None)
            return known
        if not self._may_give(name) or wanted not in self.members:
            return ""
        # Nobody holds it, or its holder wants it to go, with all messages of the group.
        self._set(name, wanted)
        self._sure[name] = None
        self.given += 1
        self.remembered += bool(self._remembered)
        return wanted

    def _set(self, name: Name, holder: str | None) -> None:
        self.changed[name] = None
        self._uncounted.pop(name, None)
        if holder is None:
            self.pins.pop(name, None)
            self._sure.pop(name, None)
            self._fresh.pop(name, None)
        else:
            self.pins[name] = holder
            self._fresh[name] = None
