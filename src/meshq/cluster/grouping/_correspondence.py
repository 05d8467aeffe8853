"""The correspondence of a node about pins: which nodes were told all, which are being asked, and which rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

#: Seconds before a node is asked again that had no answer: at first, and at last.
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
#: Members that letters of a node have named lately, which are no news.
HEARD_MAX: Final = 4

Members = frozenset[str]


class Correspondence:
    """The letters of one node to each of the others."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now``: the time in seconds."""
        self._now = now
        # By node: the session in which it was told all that this node knows, and the members of which both knew then;
        # and the members that it knew itself.
        self._told: dict[str, tuple[object, Members]] = {}
        self._shared: dict[str, Members] = {}
        # By node: the last few members that its letters have named.
        self._heard: dict[str, tuple[Members, ...]] = {}
        # The nodes to which a letter is under way, each with whether more has come up for it since; and those of them
        # that have to be told all anew.
        self._busy: dict[str, bool] = {}
        self._stale: set[str] = set()
        # The nodes that have to be asked again: when, after which pause, and the session for which that holds.
        self._again: dict[str, tuple[float, float, object]] = {}

    # -- letters that are under way

    def may_begin(self, node: str, session: object) -> bool:
        """Whether a letter to a node may be sent now: none is under way, and the node was not asked just now."""
        if node in self._busy:
            self._busy[node] = True
            return False
        known = self._again.get(node)
        return known is None or known[2] is not session or known[0] <= self._now()

    def begin(self, node: str) -> None:
        """Note that a letter to a node is under way."""
        self._busy[node] = False

    def ended(self, node: str, session: object, *, again: bool) -> bool:
        """Note that a letter to a node has been answered or given up; return whether to look anew."""
        self.ask_again(node, session, again=again)
        return self._busy.pop(node) or again

    # -- nodes that know all

    def is_told(self, node: str, session: object, members: Members) -> bool:
        """Whether a node knows all that this node would tell it, in this session."""
        told = self._told.get(node)
        return told is not None and told[0] is session and told[1] == members

    def agrees(self, node: str, session: object, members: Members) -> bool:
        """Whether a node knows all that this node would tell it, and the same members."""
        return self.is_told(node, session, members) and self._shared[node] == members

    def telling(self, node: str) -> None:
        """Note that a node is being told all from now on.

        It goes by the members of the last letter, and no longer knows what it was told before.
        """
        self._stale.discard(node)
        self._told.pop(node, None)

    def told(self, node: str, session: object, members: Members, shared: Members) -> bool:
        """Note that a node was told all; return False if it has to be told anew, since it has asked for that meanwhile.

        ``shared``: the members that the node knows itself.
        """
        if node in self._stale:
            return False
        self._told[node] = session, members
        self._shared[node] = shared
        return True

    def knew(self, node: str, members: Members) -> bool:
        """Whether these are the members that a node knew when it was told all; also if it was never told."""
        return self._shared.get(node, members) == members

    def heard(self, node: str, members: Members) -> bool:
        """Take in the members of a letter; return whether the node is to be asked soon, these being others than before.

        A node that says only that it lacks something, as before, is asked after the pause: while two nodes know other
        members neither can be content, and each tells all for its own members and for those of the other one in turn.
        """
        before, known = self._heard.get(node, ()), self._again.get(node)
        if members in before:
            return False
        self._heard[node] = (*before[1 - HEARD_MAX :], members)
        if known is None:
            return False
        self._again[node] = min(known[0], self._now() + PAUSE_S), PAUSE_S, known[2]
        return True

    def tell_anew(self, *nodes: str) -> None:
        """Have nodes told once more all that this node knows."""
        for node in nodes:
            self._told.pop(node, None)
            self._shared.pop(node, None)
        self._stale.update(nodes)

    def keep(self, members: Members) -> None:
        """Forget all other nodes than these."""
        for table in (self._told, self._shared, self._heard, self._again):
            for node in table.keys() - members:
                del table[node]
        self._stale &= members

    # -- nodes that have to be asked again

    def ask_again(self, node: str, session: object, *, again: bool) -> None:
        """Note whether a node has to be asked again: after a pause, which is longer each time."""
        known = self._again.pop(node, None)
        if again:
            pause_s = min(2 * known[1], PAUSE_MAX_S) if known is not None and known[2] is session else PAUSE_S
            self._again[node] = self._now() + pause_s, pause_s, session

    def rest_over(self) -> None:
        """Ask all nodes without a pause: the members have changed."""
        self._again.clear()

    def next_s(self) -> float:
        """The time at which a node has to be asked again; ``inf``: none has."""
        return min((at for at, _, _ in self._again.values() if at > self._now()), default=math.inf)
