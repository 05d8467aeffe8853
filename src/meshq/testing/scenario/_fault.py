"""Faults of a simulated cluster as values, which a seed draws, a failure prints, and a user hands back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from meshq.errors import SettingsError, UsageError
from meshq.testing.kit._fault_plan import TEST_HOST, check_known
from meshq.testing.scenario._shrink_plan import shorter_times

FaultKind = Literal[
    "kill",
    "pause",
    "restart",
    "power_loss",
    "partition",
    "partial",
    "one_way",
    "flapping",
    "slow",
    "lossy",
    "torn",
    "flipped",
    "enospc",
    "eio_once",
    "eio",
    "wall_clock",
]
KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)
#: They destroy what was confirmed, so ``"all"`` is without them: a node whose store they hit may refuse to start.
DESTRUCTIVE: Final[frozenset[FaultKind]] = frozenset({"flipped"})
#: They hit the link between two places, a node or the test itself.
LINK_KINDS: Final[frozenset[FaultKind]] = frozenset({"partial", "one_way", "flapping", "slow", "lossy"})
#: While they last the node serves nobody.
DOWN_KINDS: Final[frozenset[FaultKind]] = frozenset(
    {"kill", "pause", "restart", "power_loss", "torn", "flipped", "enospc", "eio_once", "eio"}
)
#: Of them, those after which the other node of a pair takes over.
FREEING_KINDS: Final[frozenset[FaultKind]] = frozenset({"kill", "power_loss", "torn"})
#: For these kinds: the meaning of ``amount``, and from and to which number it goes.
AMOUNTS: Final[Mapping[str, tuple[str, float, float]]] = {
    "slow": ("seconds that each segment takes, from 0.000001", 1e-6, 1e9),
    "lossy": ("the probability that a segment is lost, from 0.000001 to 0.999", 1e-6, 0.999),
    "flapping": ("seconds from 0.001 between two changes", 0.001, 1e9),
    "wall_clock": ("seconds by which the time of day jumps, not 0", -1e9, 1e9),
}


def _places(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, Iterable) else ()


@attrs.frozen
class Fault:
    """A fault of a simulated cluster: at so many simulated seconds, of a kind, at some nodes, for so many seconds.

    ``kind``: ``kill``, ``power_loss``, ``pause``, ``restart`` (a clean stop), ``torn`` (the power fails right after the
    next write), ``enospc``, ``eio_once``, ``eio``, ``flipped`` (a bit of the store changes while the node is dead) and
    ``wall_clock`` hit one node; ``partition`` cuts the nodes of ``where`` off from the other ones; ``partial``,
    ``one_way``, ``flapping``, ``slow`` and ``lossy`` hit the link between two places, of which one may be ``"test"``.
    After ``seconds`` a dead node starts again, and a link or a disk works again.
    ``amount``: the seconds of ``slow``, the probability of ``lossy``, the period of ``flapping``, the jump of
    ``wall_clock``.
    """

    at: float
    kind: FaultKind
    where: tuple[str, ...] = attrs.field(converter=_places)
    seconds: float = 0.0
    amount: float = 0.0

    def __attrs_post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError("kind", self.kind, ", ".join(KINDS))
        for name in ("at", "seconds"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise SettingsError(name, value, "seconds from 0")
        most = len(self.where) if self.kind == "partition" else 2 if self.kind in LINK_KINDS else 1
        if not self.where or len(self.where) != most or len(set(self.where)) < len(self.where):
            allowed = {1: "one node", 2: "two different places"}.get(most, "names of nodes")
            raise SettingsError("where", self.where, f"{allowed} for {self.kind}")
        meaning, least, highest = AMOUNTS.get(self.kind, ("0 for this kind", 0.0, 0.0))
        good = type(self.amount) in (int, float) and least <= self.amount <= highest
        if not good or (self.kind == "wall_clock" and not self.amount):
            raise SettingsError("amount", self.amount, meaning)

    def shorter(self) -> list[Fault]:
        """Return the same fault with shorter times, the shortest first."""
        least = self.amount if self.kind == "flapping" else 0.0
        return [attrs.evolve(self, seconds=seconds) for seconds in shorter_times(self.seconds) if seconds > least]

    def __str__(self) -> str:
        facts = [f"at={self.at:g}", f"kind={self.kind!r}", f"where={self.where!r}"]
        facts += [f"{name}={value:g}" for name in ("seconds", "amount") if (value := getattr(self, name))]
        return f"Fault({', '.join(facts)})"


#: ``"all"``, ``"none"``, names of kinds, or faults that are to happen in every seed.
Faults: TypeAlias = str | Sequence[str] | Sequence[Fault]


def kinds_of(faults: Any, nodes: Sequence[str]) -> tuple[list[FaultKind], list[Fault] | None]:
    """Return the kinds from which a seed draws, and the faults if they are given.

    Raises:
        SettingsError: it is none of the ways to say which faults happen.
        UsageError: a fault names a node that is not there.
    """
    if faults == "all":
        return [kind for kind in KINDS if kind not in DESTRUCTIVE], None
    if faults == "none" or (isinstance(faults, list | tuple) and not faults):
        return [], []
    allowed = f"'all', 'none', a list of faults, or of names: {', '.join(KINDS)}"
    if isinstance(faults, str) or not isinstance(faults, Sequence):
        raise SettingsError("faults", faults, allowed)
    if all(type(fault) is Fault for fault in faults):
        for fault in faults:
            for place in fault.where:
                check_known(place, [*nodes, TEST_HOST] if fault.kind in LINK_KINDS else nodes)
        return [], list(faults)
    for kind in faults:
        if kind not in KINDS:
            raise SettingsError("faults", kind, allowed)
    kinds = [kind for kind in KINDS if kind in faults]
    if len(nodes) < 2 and kinds == ["partition"]:
        raise UsageError("a partition needs two nodes or more")
    return kinds, None
