"""The next step of a drain, from the state of its node and its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import attrs

from meshq.abc import TransferInventory
from meshq.errors import BusyError, CursorHeldError, MeshqError, RefusedError
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

    ``lacking``: durable queues that the target lacks.  ``xids``: prepared transactions, and ``taken``: whether the
    target understands these.  ``target``: the state of the target, ``label``; ``leaving``: it takes nothing in.
    ``ahead``: messages that wait for it.  ``moved``: what went in the round; ``idle_s``: seconds without a change,
    of which ``patience_s`` are allowed.
    ``full``: why something could not go because of this node's own disk; empty: nothing was kept so.
    ``unheard``: other nodes that do not know how far their messages are stored.
    """

    left: TransferInventory
    lacking: Sequence[str]
    xids: Sequence[bytes]
    taken: bool
    label: str
    target: str
    leaving: bool
    ahead: int
    moved: int
    idle_s: float
    patience_s: float
    unheard: Sequence[str]
    full: str = ""


def next_step(facts: DrainFacts) -> Step:
    """Return the next step: another round at once, a wait, another target, or the end.

    Raises:
        BusyError: prepared transactions are left that an older target does not understand.
        RefusedError: something is left that does not move.
    """
    left = facts.left
    if facts.moved:
        return "go_on"
    if left.prepared and facts.target == "linked" and not facts.taken:
        raise prepared_left(facts.label, facts.xids)
    if left.empty and not facts.lacking:
        return "wait" if facts.unheard and facts.idle_s < PATIENCE_S else "end"
    if facts.target == "left" or (facts.target == "down" and not facts.ahead):
        return "choose"
    if facts.target == "down":
        # It did not say goodbye: it may have stored what it has not confirmed.
        return _waited(facts, f"{facts.label} is down, and may have some of the {facts.ahead} messages on their way")
    if facts.leaving:
        return _waited(facts, f"{facts.label} leaves, too, and takes nothing in")
    if facts.target == "linked" and not facts.ahead and (left.messages or left.ids or left.prepared or facts.lacking):
        if facts.full:
            # Whoever frees space lets it go on.
            return _waited(facts, facts.full)
        if left.prepared:
            # A transaction goes on only where it was begun, and that node may come back.
            return _waited(facts, f"{facts.label} can't take this, or another node has a part of a transaction")
        if facts.idle_s < STUCK_S:
            return "wait"
        raise RefusedError(f"{_shown(facts)}: {facts.label} can't take this; what has moved has moved")
    if not (left.messages or left.ids or left.prepared or facts.lacking or facts.ahead):
        return _waited(facts, "nodes for which it waits do not answer")
    if facts.idle_s >= facts.patience_s:
        raise RefusedError(f"{_shown(facts)}: {facts.label} does not answer; what has moved has moved")
    return "wait"


def prepared_left(label: str, xids: Sequence[bytes]) -> MeshqError:
    """Return the error that names transactions which have to be decided first."""
    return BusyError(f"{label} is older, and takes no prepared transactions, decide these first: {_named(xids)}")


def cursors_left(held: Sequence[tuple[str, str]]) -> MeshqError:
    """Return the error that names cursors which have to be deleted first."""
    more = f" and {len(held) - 10} more" if len(held) > 10 else ""
    named = ", ".join(f"{name!r} of {queue!r}" for queue, name in held[:10])
    queue, name = held[0]
    return CursorHeldError(f"cursors are not handed over, delete these first: {named}{more}", queue=queue, name=name)


def sinks_left(sinks: Sequence[str]) -> MeshqError:
    """Return the error that names sinks which have to be deleted first."""
    more = f" and {len(sinks) - 10} more" if len(sinks) > 10 else ""
    named = ", ".join(map(repr, sinks[:10]))
    text = "the batch ledger is not handed over: end the programs of these sinks and delete_sink them first"
    return BusyError(f"{text}: {named}{more}")


def queues_lacking(label: str, names: Sequence[str]) -> MeshqError:
    """Return the error that names queues which have to be made first."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    text = f"{label} is older, and makes no queues: make these there first: {', '.join(map(repr, names[:10]))}{more}"
    return RefusedError(text)


def _named(xids: Sequence[bytes]) -> str:
    names = ", ".join(xid.hex() for xid in xids[:10])
    return f"{names} and {len(xids) - 10} more" if len(xids) > 10 else names


def _waited(facts: DrainFacts, why: str) -> Step:
    if facts.idle_s < PATIENCE_S:
        return "wait"
    raise RefusedError(f"{_shown(facts)}: {why}; what has moved has moved")


def _shown(facts: DrainFacts) -> str:
    left = facts.left
    parts = [f"{count} of {queue!r}" for queue, count in [*left.messages.items(), *left.forwarded.items()]]
    parts += [f"{count} duplicate ids of {address!r}" for address, count in left.ids.items()]
    parts += [f"the queue {name!r}" for name in facts.lacking if name not in left.messages]
    more = f" and {len(parts) - 10} more" if len(parts) > 10 else ""
    shown = f"{', '.join(parts[:10])}{more}" if parts else ""
    if left.prepared:
        shown = f"{shown}{', and ' if shown else ''}the prepared transactions {_named(facts.xids)}"
    return f"left are {shown}"
