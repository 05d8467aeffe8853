"""The epoch directories of a data directory, and the plan of the next activation.

::

    DIR/lock            locked by the node that has the store
    DIR/owner           who that is: a hint
    DIR/waiting/        a file for each node that waits
    DIR/epoch-<n>/      the store itself, as a plain directory has it
    DIR/epoch-<n>/stopped-<n>   the owner of this epoch was stopped, and did not hand over; may be missing
    DIR/epoch-0/        the first epoch, while it is made
    DIR/claimed         the next epoch begins whatever the last owner has said; may be missing
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

import attrs

from meshq.errors import SettingsError
from meshq.ha._store_claim_plan import CLAIM_EPOCHS

PREFIX: Final = "epoch-"
#: The mark of a store that an operator has claimed.
CLAIMED: Final = "claimed"
#: The highest epoch that a name can have: numbers are sent in frames.
EPOCH_MAX: Final = 2**53 - 1
#: The number in the name of the first epoch's directory while it is made.
FIRST_IN_THE_MAKING: Final = 0
#: The parts of a store in a plain directory, in the order in which they are moved.
PARTS: Final = ("journal", "large", "paging", "bindings")
#: Files that say that parts of a plain store lie elsewhere.
PLACES: Final = ("places-0", "places-1")


def epoch_name(epoch: int) -> str:
    """Return the name of the directory of an epoch."""
    return f"{PREFIX}{epoch}"


def epoch_of(name: str) -> int | None:
    """Return the epoch of a directory; None: the name is none of an epoch."""
    digits = name.removeprefix(PREFIX)
    if digits == name or not digits.isascii() or not digits.isdigit() or digits.startswith("0"):
        return None
    epoch = int(digits)
    return epoch if epoch <= EPOCH_MAX else None


def stopped_name(epoch: int | Literal[""]) -> str:
    """Return the name of the mark of an epoch whose owner was stopped; in the directory of another one it is none."""
    return f"stopped-{epoch}"


def newest_epoch(names: Iterable[str]) -> int:
    """Return the highest epoch among the names in a data directory; 0: the directory has none."""
    return max((epoch for name in names if (epoch := epoch_of(name)) is not None), default=0)


@attrs.frozen(kw_only=True)
class ActivationPlan:
    """The changes that an activation makes in a data directory.

    ``epoch``: the one that begins.  ``rename``: the epoch whose directory gets the new name; 0: one that is made, and
    gets the name when it is whole, so that no two nodes ever begin the same epoch.  ``move``: the parts of a plain
    store that go there before.
    """

    epoch: int
    rename: int = 0
    move: tuple[str, ...] = ()


def plan_activation(names: Collection[str], within: Mapping[int, Collection[str]], *, where: str) -> ActivationPlan:
    """Plan the next activation of a data directory that the node has locked.

    ``names``: what is in the directory; ``within``: what is in the directories of its epochs, by their numbers, that of
    the first one in the making among them.  A move that a crash has interrupted goes on.

    Raises:
        SettingsError: parts of the store lie elsewhere, or there are two stores.
    """
    plain = tuple(part for part in PARTS if part in names)
    epoch = newest_epoch(names)
    elsewhere = [place for place in PLACES if place in names or place in within.get(epoch, ())]
    if elsewhere:
        raise SettingsError("data_dir", where, f"a store all of whose parts are in it; {elsewhere[0]} says otherwise")
    if not plain:
        later = CLAIM_EPOCHS if CLAIMED in names else 1
        return ActivationPlan(epoch=1) if epoch == 0 else ActivationPlan(epoch=epoch + later, rename=epoch)
    twice = [part for part in plain if part in within.get(FIRST_IN_THE_MAKING, ())]
    if epoch > 0 or twice:
        allowed = f"one store: it has {twice[0] if twice else plain[0]!r} and {epoch_name(epoch)!r}"
        raise SettingsError("data_dir", where, allowed)
    return ActivationPlan(epoch=1, move=plain)
