"""The steps of faults: when each begins and ends, and the state of links meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from meshq.testing.kit._fault_plan import Direction
from meshq.testing.scenario._fault import Fault

#: A link that comes and goes does so no more often.
FLAPS_MAX: Final = 100


@attrs.frozen
class Step:
    """A moment at which a fault begins, ends, or, ``again``, does so once more."""

    at: float
    begins: bool
    fault: Fault
    again: bool = False


@attrs.frozen
class LinkFault:
    """The faults of one direction of a link."""

    cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        told = ["cut"] if self.cut else []
        told += [f"delay of {self.delay_s:g} s"] if self.delay_s else []
        told += [f"{self.loss:.0%} lost"] if self.loss else []
        return ", ".join(told) or "works again"


HEALTHY: Final = LinkFault()


def steps_of(faults: Iterable[Fault]) -> list[Step]:
    """Return all steps in the order of their times."""
    steps: list[Step] = []
    for fault in faults:
        end = fault.at + fault.seconds
        steps.append(Step(fault.at, begins=True, fault=fault))
        if fault.kind == "flapping":
            flaps = min(FLAPS_MAX, int(fault.seconds / fault.amount))
            steps += [
                Step(fault.at + number * fault.amount, begins=number % 2 == 0, fault=fault, again=True)
                for number in range(1, flaps + 1)
                if number * fault.amount < fault.seconds
            ]
        if fault.kind != "wall_clock":
            steps.append(Step(end, begins=False, fault=fault))
    return sorted(steps, key=lambda step: step.at)


def links_of(active: Iterable[Fault], nodes: Sequence[str]) -> dict[Direction, LinkFault]:
    """Return the faults of each direction between two places while these faults last."""
    links: dict[Direction, LinkFault] = {}
    for fault in active:
        for direction in _directions(fault, nodes):
            link = links.get(direction, HEALTHY)
            if fault.kind == "slow":
                link = attrs.evolve(link, delay_s=max(link.delay_s, fault.amount))
            elif fault.kind == "lossy":
                link = attrs.evolve(link, loss=max(link.loss, fault.amount))
            else:
                link = attrs.evolve(link, cut=True)
            links[direction] = link
    return links


def changed(
    before: Mapping[Direction, LinkFault], now: Mapping[Direction, LinkFault]
) -> list[tuple[Direction, LinkFault]]:
    """Return the directions that have changed, with their present faults."""
    directions = dict.fromkeys([*before, *now])
    return [(one, now.get(one, HEALTHY)) for one in directions if before.get(one, HEALTHY) != now.get(one, HEALTHY)]


def _directions(fault: Fault, nodes: Sequence[str]) -> list[Direction]:
    if fault.kind == "partition":
        others = [name for name in nodes if name not in fault.where]
        return [pair for one in fault.where for other in others for pair in ((one, other), (other, one))]
    one, other = fault.where
    return [(one, other)] if fault.kind == "one_way" else [(one, other), (other, one)]
