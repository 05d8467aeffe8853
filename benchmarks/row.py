"""What a row of the benchmarks is: a workload for each system, its figures, and the targets of these."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from benchmarks.workload import Workload

Nominal = Mapping[str, float]
#: What must fit a whole number of times into a count: 4 tasks of 100, 1,000 per pipeline.
COUNT_STEP = 2_000


@attrs.frozen(kw_only=True)
class Target:
    """A promise about one figure: at least or at most ``factor`` times another system's, or an absolute bound."""

    #: "floor", "redis", or "" for an absolute bound.
    against: str = ""
    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """``value`` is the ratio, or for an absolute bound the figure."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        sign, bound = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        against = {"floor": " x floor", "redis": " x Redis", "": ""}[self.against]
        return f"{sign} {bound:g}{against}"


@attrs.frozen(kw_only=True)
class Line:
    """One figure of a row."""

    metric: str
    title: str
    unit: str
    targets: tuple[Target, ...] = ()


@attrs.frozen(kw_only=True)
class Row:
    """One measurement, which may give several figures."""

    key: str
    lines: tuple[Line, ...]
    workloads: Mapping[str, Workload]
    #: Messages a second to expect, by system: they make a run as long as was asked for.
    nominal: Nominal = attrs.field(factory=dict)
    #: How much longer than others this row runs.
    stretch: float = 1.0
    #: What the floor must reach of Redis here; below it the floor is no yardstick and is mended first.
    floor_to_redis: float | None = None
    #: Whether ActiveMQ Classic is measured, too.
    activemq: bool = False

    @property
    def family(self) -> str:
        """The row of the plan that this one belongs to: ``P1`` for ``P1-properties``."""
        return self.key.partition("-")[0]

    def workload(self, system: str, seconds: float, messages: int | None) -> Workload:
        """What ``system`` is to run."""
        plain = self.workloads[system]
        if system not in self.nominal:
            return attrs.evolve(plain, count=messages or plain.count)
        count = messages or int(seconds * self.stretch * self.nominal[system])
        step = COUNT_STEP if plain.frame > 1 else plain.tasks
        return attrs.evolve(plain, count=max(step, count // step * step))
