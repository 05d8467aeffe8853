"""Two nodes of a pair meet: which of them may serve."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True, order=True)
class Standpoint:
    """The memory of a node that does not serve, in the order in which it counts.

    A later epoch is newer.  In one epoch the node that has served in it may have gone on without the other one, which
    has less then; and who was in sync has more than who was not.  Of two that are alike the primary goes first.
    """

    epoch: int
    acted: bool
    in_sync: bool
    primary: bool

    @property
    def whole(self) -> bool:
        """Whether the store of the node has all that was confirmed in its epoch, as far as it knows."""
        return self.epoch == 0 or self.acted or self.in_sync


def may_start(
    own: Standpoint,
    others: Sequence[Standpoint | None],
    *,
    first: bool,
    refused: bool = False,
    asked: bool = False,
) -> bool:
    """Whether a node that found no active node may be active by itself.

    ``others``: the other nodes, which do not serve; None: one does not answer, or has a word to say against it.
    ``first``: the node has not served in this life.  ``refused``: another node lives, and has refused to answer.
    ``asked``: an operator has made a primary of what was a backup.

    A primary that starts waits for nobody who does not answer, but for one that has a newer store, or refuses to say.
    Who has served last, or has never followed, starts so; who was only a replica may have been left behind, and waits.
    Any other node starts only when all the others answer, and have older ones.
    """
    if any(other is not None and other > own for other in others) or not (own.whole or asked):
        return False
    if unasked(own, first=first) or (asked and own.primary and first):
        return not refused
    known = bool(others) and all(other is not None and other < own for other in others)
    return known and (own.primary or own.epoch > 0)


def unasked(own: Standpoint, *, first: bool) -> bool:
    """Whether a node may start although another one does not answer: it knows that it is the last that served."""
    return own.primary and first and (own.acted or own.epoch == 0)


def gives_way(own: tuple[int, bool, bytes], other: tuple[int, bool, bytes]) -> bool:
    """Whether a node that serves steps back, because another one serves, too.

    Each is an epoch, whether the node is a backup, and its instance: in one epoch the backup has taken over from the
    primary, which came back and did not ask.  Of two that are alike one of them goes first, the same for both.
    """
    return other > own
