"""The run of one seed of a scenario: a cluster, its faults, and the end of both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import attrs
import trio
from trio.testing import MockClock

from meshq.errors import SettingsError
from meshq.testing._swarm import Swarm
from meshq.testing.kit._cluster import Cluster
from meshq.testing.kit._cluster_settings import NODE_KEYWORDS, ClusterPlan
from meshq.testing.kit._fault_plan import check_flag
from meshq.testing.kit._left_open import called
from meshq.testing.kit._run import run_in_world
from meshq.testing.kit._world import SimulatedWorld, WorldEvent
from meshq.testing.scenario._drawn_faults import drawn_faults
from meshq.testing.scenario._fault import Fault, FaultKind, Faults, kinds_of
from meshq.testing.scenario._fault_run import FaultRun, Invariant

Scenario = Callable[[Cluster], Awaitable[object]]
#: A scenario that is not done so many simulated seconds after the last fault waits for what never comes.
LIMIT_S: Final = 3600.0


def _invariants(value: Any) -> tuple[Invariant, ...]:
    allowed = "a list of async functions of the cluster"
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise SettingsError("invariants", value, allowed)
    found = tuple(value)
    for one in found:
        if not callable(one):
            raise SettingsError("invariants", one, allowed)
    return found


@attrs.frozen(kw_only=True)
class ScenarioPlan:
    """The settings of a scenario beside its seeds, validated when built."""

    cluster: ClusterPlan
    faults: Faults = "all"
    #: Faults begin within so many simulated seconds.
    duration: float = 60.0
    #: It is over at most so many simulated seconds after the time in which faults begin and end.
    limit: float = LIMIT_S
    #: Whether the faults are looked for that a failure needs.
    shrink: bool = True
    invariants: tuple[Invariant, ...] = attrs.field(default=(), converter=_invariants)
    #: The kinds from which a seed draws, and the faults if they are given.
    kinds: list[FaultKind] = attrs.field(init=False, repr=False)
    given: list[Fault] | None = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if type(self.duration) not in (int, float) or not 0 < self.duration <= 1e6:
            raise SettingsError("duration", self.duration, "seconds, more than 0")
        if type(self.limit) not in (int, float) or not 0 < self.limit <= 1e9:
            raise SettingsError("limit", self.limit, "simulated seconds, more than 0")
        check_flag("shrink", self.shrink)
        kinds, given = kinds_of(self.faults, self.cluster.names)
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "given", given)

    def faults_of(self, seed: int) -> list[Fault]:
        """Return the faults of a seed."""
        if self.given is not None:
            return sorted(self.given, key=lambda fault: fault.at)
        return drawn_faults(Swarm(seed).rng("faults"), self.kinds, self.cluster.names, self.duration)


@attrs.define(kw_only=True)
class SeedRun:
    """A run of one seed, and its outcome."""

    seed: int
    faults: list[Fault]
    error: BaseException | None = None
    #: Seed, nodes, queues and cut links at the end, then the last events, a line each.
    lines: list[str] = attrs.field(factory=list, repr=False)
    #: Equal for equal runs.
    trace: int = 0
    simulated_s: float = 0.0
    #: How often a fault of each kind has happened.
    happened: dict[str, int] = attrs.field(factory=dict)
    #: Whether the scenario did nothing.
    empty: bool = False


def run_one(
    scenario: Scenario,
    plan: ScenarioPlan,
    seed: int,
    faults: Sequence[Fault],
    *,
    tell: Callable[[WorldEvent], object] | None = None,
    failures: tuple[type[BaseException], ...] = (Exception,),
) -> SeedRun:
    """Run a scenario with a seed and these faults.  ``failures``: errors with which a scenario fails; others go on."""
    __tracebackhide__ = True
    last_s = max((fault.at + fault.seconds for fault in faults), default=0.0)
    world = SimulatedWorld(seed, MockClock(), tell, limit_s=last_s + plan.duration + plan.limit)
    run = SeedRun(seed=seed, faults=list(faults))
    try:
        run_in_world(world, lambda: _play(world, scenario, plan, run))
    except failures as error:
        run.error = error
    run.trace = world.scheduler.trace
    return run


async def _play(world: SimulatedWorld, scenario: Scenario, plan: ScenarioPlan, run: SeedRun) -> None:
    cluster = Cluster(world, plan.cluster)
    fault_run = FaultRun(world, cluster, run.faults, plan.invariants)
    try:
        await cluster.form()
        task = cluster.spawn(None, fault_run.run)
        cluster.until_healed(task)
        before = world.scheduler.trace, len(world.events)
        await called(scenario, (cluster,), "the scenario")
        run.empty = (world.scheduler.trace, len(world.events)) == before and not plan.invariants
        if plan.invariants:
            await cluster.healed()
            for invariant in plan.invariants:
                await called(invariant, (cluster,), "an invariant")
    finally:
        run.happened, run.simulated_s = dict(fault_run.happened), trio.current_time()
        run.lines = [*cluster.report_lines(), *world.last_events()]
        await cluster.close()


def plan_of(nodes: int, settings: dict[str, Any], **others: Any) -> ScenarioPlan:
    """Make the settings of a scenario out of the keywords of ``simulate``.

    Raises:
        SettingsError: one of them is not allowed.
        UsageError: this version has no such backups.
    """
    return ScenarioPlan(cluster=ClusterPlan.of(nodes, settings, ("seeds", "nodes", *others, *NODE_KEYWORDS)), **others)
