"""Let features of delivery meet: ``python -m qa.pairs --seeds 120 --result pairs``.

Each seed plays a few features on one queue.  A line for each seed that breaks a promise; the exit status is 1 then, and
if two features have never met, or one has never acted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

import meshq
from meshq.testing import Cluster
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.scenario._seed_run import ScenarioPlan, run_one
from qa.arguments import COUNT, NATURAL
from qa.pairs.accounts import MeetingError
from qa.pairs.covering import Row, array_of, counts_of, missing_triples, pairs_of
from qa.pairs.features import ACTING, EXCLUDED, FEATURES, nodes_of, queues_of, security_of, services_of, settings_of
from qa.pairs.scenario import meeting
from qa.results import ResultFile, ResultFormat, about_here, add_result_option

FORMAT: Final = ResultFormat("pairs")
#: With so many rows every pair is together; CI plays these.
SEEDS: Final = 24


@attrs.frozen
class Played:
    """A seed that was played."""

    error: BaseException | None
    simulated_s: float
    #: How often what a feature does was done.
    acted: Counter[str]

    @property
    def caught_by(self) -> str:
        """The promise that is broken, or the kind of the error."""
        error = self.cause
        return str(error).partition(":")[0] if isinstance(error, MeetingError) else type(error).__name__

    @property
    def cause(self) -> BaseException | None:
        """The error, out of the groups of the nurseries around it."""
        error = self.error
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return error


def rows_of(seeds: int) -> list[Row]:
    """The features of each seed, from seed 0 on."""
    return array_of(list(FEATURES), seeds, excluded=list(EXCLUDED))


def played(seed: int, row: Row) -> Played:
    """Play one seed; its error is None if nothing is wrong."""
    acted: Counter[str] = Counter()

    async def scenario(cluster: Cluster) -> None:
        acted.update(await meeting(cluster, row))

    cluster = ClusterPlan(
        nodes=len(nodes_of(row)),
        queues=queues_of(row),
        address_settings=settings_of(row),
        security=security_of(row),
        services=partial(services_of, row),
    )
    run = run_one(scenario, ScenarioPlan(cluster=cluster, faults="none"), seed, [])
    return Played(run.error, run.simulated_s, acted)


@attrs.define
class PairsTally:
    """The results of the seeds so far."""

    seeds: int = 0
    failed: list[dict[str, Any]] = attrs.field(factory=list)
    simulated_s: float = 0.0
    acted: Counter[str] = attrs.field(factory=Counter)

    def add(self, seed: int, run: Played) -> None:
        """Add a seed."""
        self.seeds += 1
        self.simulated_s += run.simulated_s
        self.acted.update(run.acted)
        if run.error is not None:
            self.failed.append({"seed": seed, "caught_by": [run.caught_by], "what": str(run.cause)[:200]})


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.pairs", description=__doc__)
    parser.add_argument("--seeds", type=COUNT, default=SEEDS, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--first", type=NATURAL, default=0, metavar="S", help="the first of them (%(default)s)")
    parser.add_argument("--until", metavar="P1,P2", default="", help="stop at the first seed that breaks one of these")
    parser.add_argument(
        "--jobs", type=COUNT, default=1, metavar="J", help="taken for the sake of other commands: there is one job"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end, and nothing else")
    add_result_option(parser, FORMAT)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Play seeds; 0 if every pair has met, every feature has acted, and nothing is wrong."""
    given = parser().parse_args(arguments)
    rows = rows_of(given.first + given.seeds)
    tally, began_s = PairsTally(), time.process_time()
    for seed in range(given.first, given.first + given.seeds):
        run = played(seed, rows[seed])
        tally.add(seed, run)
        if run.error is not None and not given.json:
            print(f"seed {seed}: {', '.join(sorted(rows[seed]))}\n{run.cause!r}", flush=True)
        if run.error is not None and run.caught_by in given.until.split(","):
            break
    # What was played: a run may have ended at the first seed that broke a promise.
    result = figures(tally, rows[given.first : given.first + tally.seeds])
    file: ResultFile | None = given.result
    if file is not None:
        said = sys.argv[1:] if arguments is None else list(arguments)
        file.write({"command": " ".join(["python -m qa.pairs", *said]), **about_here(), **result})
    if given.json:
        found = {"package": str(Path(meshq.__file__).parent), "seeds": tally.seeds, "failed": tally.failed}
        print(json.dumps(found))
        return 1 if tally.failed else 0
    missing = [pair for pair in result["pairs"] if not pair[2]]
    idle = [name for name in ACTING if not tally.acted[name]]
    print(
        f"{tally.seeds} seeds, {len(tally.failed)} failed, {tally.simulated_s:.0f} simulated seconds, "
        f"{time.process_time() - began_s:.0f} processor seconds, {len(missing)} pairs missing, "
        f"never done: {', '.join(idle) or 'nothing'}"
    )
    return 1 if tally.failed or missing or idle else 0


def figures(tally: PairsTally, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of a run.  ``rows``: the features of each seed that was run."""
    names = list(FEATURES)
    together = counts_of(rows, names)
    return {
        "seeds": tally.seeds,
        "failed": [one["seed"] for one in tally.failed],
        "simulated_s": round(tally.simulated_s),
        "triples_missing": missing_triples(rows, names, list(EXCLUDED)),
        "features": names,
        "acted": {name: tally.acted[name] for name in ACTING},
        "pairs": [[one, other, together[one, other]] for one, other in pairs_of(names, list(EXCLUDED))],
    }


if __name__ == "__main__":
    sys.exit(main())
