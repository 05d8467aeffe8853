"""The next step of a drain, from the state of its node and its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import attrs

from meshq.abc import TransferInventory
from meshq.errors import BusyError, MeshqError, RefusedError
from meshq.lifecycle import Transitions

#: ``close``: the node takes nothing in any more.  ``look``: a dry run has counted.  ``hand_over``: nothing is left, and
#: the others are told.  ``cut``: the block was left before that.  ``fail``: an error that waiting does not mend.
DRAIN_TRANSITIONS: Final[Transitions] = {
    "new": {"close": "moving", "look": "looked", "cut": "cut", "fail": "failed"},
    "moving": {"hand_over": "transferred", "cut": "cut", "fail": "failed"},
    "looked": {},
    "transferred": {},
    "cut": {},
    "failed": {},
}

#: Seconds without a change after which what is left is taken to stay.
STUCK_S: Final = 2.0
#: Seconds for which a drain that has nothing else to do waits for nodes that do not answer.
PATIENCE_S: Final = 30.0

Step = Literal["go_on", "wait", "choose", "end"]


@attrs.frozen(kw_only=True)
class DrainFacts:
    """The state of a drain after a round.

    ``xids``: prepared transactions.  ``target``: the state of the target, ``label``; ``leaving``: it takes nothing in.
    ``ahead``: messages that wait for it.  ``moved``: what went in the round; ``idle_s``: seconds without a change,
    of which ``patience_s`` are allowed.
    ``unheard``: other nodes that do not know how far their messages are stored.
    """

    left: TransferInventory
    xids: Sequence[bytes]
    label: str
    target: str
    leaving: bool
    ahead: int
    moved: int
    idle_s: float
    patience_s: float
    unheard: Sequence[str]


def next_step(facts: DrainFacts) -> Step:
    """Return the next step: another round at once, a wait, another target, or the end.

    Raises:
        BusyError: prepared transactions are left, which do not move.
        RefusedError: something is left that does not move.
    """
    left = facts.left
    if facts.moved:
        return "go_on"
    if left.prepared:
        raise prepared_left(facts.xids)
    if left.empty:
        return "wait" if facts.unheard and facts.idle_s < PATIENCE_S else "end"
    if facts.target in ("left", "down"):
        return "choose"
    if facts.leaving:
        return _waited(facts, f"{facts.label} leaves, too, and takes nothing in")
    if facts.target == "linked" and not facts.ahead and (left.messages or left.ids):
        if facts.idle_s < STUCK_S:
            return "wait"
        raise RefusedError(f"{_shown(left)}: {facts.label} can't take this; what has moved has moved")
    if not (left.messages or left.ids or facts.ahead):
        return _waited(facts, "nodes for which it waits do not answer")
    if facts.idle_s >= facts.patience_s:
        raise RefusedError(f"{_shown(left)}: {facts.label} does not answer; what has moved has moved")
    return "wait"


def prepared_left(xids: Sequence[bytes]) -> MeshqError:
    """Return the error that names transactions which have to be decided first."""
    names = ", ".join(xid.hex() for xid in xids[:10])
    more = f" and {len(xids) - 10} more" if len(xids) > 10 else ""
    return BusyError(f"prepared transactions do not move, decide these first: {names}{more}")


def _waited(facts: DrainFacts, why: str) -> Step:
    if facts.idle_s < PATIENCE_S:
        return "wait"
    raise RefusedError(f"{_shown(facts.left)}: {why}; what has moved has moved")


def _shown(left: TransferInventory) -> str:
    parts = [f"{count} of {queue!r}" for queue, count in [*left.messages.items(), *left.forwarded.items()]]
    parts += [f"{count} duplicate ids of {address!r}" for address, count in left.ids.items()]
    more = f" and {len(parts) - 10} more" if len(parts) > 10 else ""
    return f"left are {', '.join(parts[:10])}{more}"
