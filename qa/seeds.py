"""Many seeds of the scenario, run in several processes, and a report of each."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import Final

import attrs

from meshq.testing import SimulationResult
from meshq.testing.history._end import HistoryError
from qa.balanced.scenario import run_balanced_seed
from qa.chain.scenario import run_chain_seed
from qa.fanout.scenario import run_fanout_seed
from qa.grouping_model.scenario import run_grouping_seed
from qa.ha.clients import PairError
from qa.ha.colocated import run_colocated_seed
from qa.ha.provided import run_provided_pair_seed
from qa.ha.replicated import run_replicated_pair_seed
from qa.ha.scenario import run_pair_seed
from qa.ha.voted import run_voted_pair_seed
from qa.mesh.scenario import run_mesh_seed
from qa.network.scenario import run_network_seed
from qa.simulation.faults import STORAGE_FAULTS
from qa.simulation.scenario import Outcome, run_seed

#: The name of the simulation of a single broker.
BROKER: Final = "broker"
#: The simulations by their names, which are the flags of ``qa.simulate``: of a single broker; of one whose disk and
#: power fail, and nothing else; of a broker that has to step back from time to time; of such a broker whose records
#: have to be durable at a partner, too; of three brokers that are linked; of four to seven; of three that move messages
#: to each other's consumers; of three that find each other; of three of which one drains and goes for good; of
#: three to five that are linked to their neighbours only; of balancers and their targets; of three to ten in a network
#: of brokers; of a client that sends to three; of two to six whose message groups alone are real; of two or three that
#: share a store; of two of which one follows the log of the other; of two of these that ask a quorum, and of two
#: about which three others vote; and of two processes, in each of which is a node and the backup of the other one.
STAGES: Final[dict[str, Callable[[int], SimulationResult]]] = {
    BROKER: run_seed,
    "storage": partial(run_seed, kinds=STORAGE_FAULTS),
    "turns": partial(run_seed, turns=True),
    "replicated": partial(run_seed, replicated=True),
    "mesh": run_mesh_seed,
    "wide": partial(run_mesh_seed, wide=True),
    "redistribution": partial(run_mesh_seed, redistributed=True),
    "discovery": partial(run_mesh_seed, discovered=True),
    "drain": partial(run_mesh_seed, drained=True),
    "chain": run_chain_seed,
    "balanced": run_balanced_seed,
    "network": run_network_seed,
    "fanout": run_fanout_seed,
    "grouping": run_grouping_seed,
    "ha": run_pair_seed,
    "pair": run_replicated_pair_seed,
    "provided": run_provided_pair_seed,
    "voted": run_voted_pair_seed,
    "colocated": run_colocated_seed,
}
#: Seeds that wait for each process: enough that none is ever idle, and that an early end wastes little.
AHEAD: Final = 3
#: A collection of garbage looks at so many new objects at once, and so many collections make one of the next kind: a
#: simulation makes little garbage, and the default of 700 took a tenth of its time.
GARBAGE: Final = (50_000, 20, 100)
#: How much of a failure is kept.
FAILURE_CHARACTERS_MAX: Final = 8_000


@attrs.frozen(kw_only=True)
class SeedReport:
    """The report of one seed, which can be sent between processes."""

    seed: int
    #: The checkers that found a promise broken, or the name of the error; empty: it has passed.
    caught_by: tuple[str, ...]
    #: What was found, and the story of it.
    failure: str
    trace: int
    simulated_s: float
    #: Processor seconds that it took.
    cpu_s: float
    turns: int
    #: Sends that were confirmed, and faults; 0 sends if it failed.
    confirmed: int
    faults: int
    counters: dict[str, int] = attrs.field(repr=False)
    #: Tasks did not end when they were told to.
    abandoned: bool
    #: The name of the simulation, one of ``STAGES``.
    stage: str = BROKER

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.caught_by

    @property
    def headline(self) -> str:
        """The first line of the finding."""
        # The text of an error may have lines of its own, which stand for themselves in its representation.
        return self.failure.partition("\n")[0].partition("\\n")[0]

    @property
    def line(self) -> str:
        """The finding and the command that repeats the seed, in one line."""
        return f"seed {self.seed} {', '.join(self.caught_by)}: {self.headline} -- {command_for(self.seed, self.stage)}"


def command_for(seed: int, stage: str = BROKER) -> str:
    """Return the command that runs one seed again."""
    return f"python -m qa.simulate --seed {seed}{'' if stage == BROKER else f' --{stage}'}"


def _checker(error: BaseException) -> str:
    """Return who found a failure: the checker that a broken promise of a pair names, or the error."""
    return str(error).partition(":")[0] if isinstance(error, PairError) else type(error).__name__


def report_of(result: SimulationResult, cpu_s: float, stage: str = BROKER) -> SeedReport:
    """The report of a run of the scenario."""
    failure, caught_by, text = result.failure, tuple[str, ...](), ""
    if isinstance(failure, HistoryError):
        caught_by, text = failure.checkers, str(failure)
    elif failure is not None:
        leaves = list(_leaves(failure))
        caught_by = tuple(dict.fromkeys(_checker(leaf) for leaf in leaves))
        text = f"{leaves[0]!r}\n" + "".join(traceback.format_exception(failure))
    outcome = result.value if isinstance(result.value, Outcome) else None
    return SeedReport(
        seed=result.seed,
        caught_by=caught_by,
        failure=text[:FAILURE_CHARACTERS_MAX],
        trace=result.trace,
        simulated_s=result.simulated_s,
        cpu_s=cpu_s,
        turns=result.turns,
        confirmed=0 if outcome is None else outcome.confirmed,
        faults=sum(number for kind, number in result.counters.items() if kind.startswith("fault.")),
        counters=result.counters,
        abandoned=result.abandoned,
        stage=stage,
    )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Return the errors in a group, as which a task that failed in a nursery ends."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def one_seed(seed: int, stage: str = BROKER) -> SeedReport:
    """Run one seed of a simulation here."""
    began = time.process_time()
    result = STAGES[stage](seed)
    return report_of(result, time.process_time() - began, stage)


def many_seeds(seeds: Iterable[int], jobs: int, stage: str = BROKER) -> Iterator[SeedReport]:
    """Run seeds in ``jobs`` processes; reports come in the order of the seeds.  Stop taking them to stop.

    Each process begins afresh, so that no seed inherits anything from this one.
    """
    waiting: deque[Future[SeedReport]] = deque()
    left = iter(seeds)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=gc.set_threshold, initargs=GARBAGE) as pool:
        try:
            while True:
                while len(waiting) < jobs * AHEAD and (seed := next(left, None)) is not None:
                    waiting.append(pool.submit(one_seed, seed, stage))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            # The seeds under way end, and with them the processes: nothing is left running.
            pool.shutdown(cancel_futures=True)


@attrs.define
class Tally:
    """Many reports added up."""

    seeds: int = 0
    failed: list[SeedReport] = attrs.field(factory=list)
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    confirmed: int = 0
    faults: int = 0
    abandoned: int = 0
    counters: dict[str, int] = attrs.field(factory=dict)

    def add(self, report: SeedReport) -> None:
        """Add a report."""
        self.seeds += 1
        if not report.passed:
            self.failed.append(report)
        self.simulated_s += report.simulated_s
        self.cpu_s += report.cpu_s
        self.confirmed += report.confirmed
        self.faults += report.faults
        self.abandoned += report.abandoned
        for kind, number in report.counters.items():
            self.counters[kind] = self.counters.get(kind, 0) + number
