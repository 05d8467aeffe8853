"""Let features of delivery meet: ``python -m qa.pairs [--seeds 60] [--result pairs]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from meshq.testing import Cluster
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.scenario._seed_run import ScenarioPlan, SeedRun, run_one
from qa.pairs.covering import Row, array_of, counts_of, missing_triples, pairs_of
from qa.pairs.features import EXCLUDED, FEATURES, nodes_of, queues_of, security_of, services_of, settings_of
from qa.pairs.scenario import meeting
from qa.results import RESULTS, about_here

KIND: Final = "pairs"
#: With so many rows every pair is together; CI plays these.
SEEDS: Final = 24


def rows_of(seeds: int) -> list[Row]:
    """The features of each seed, from seed 0 on."""
    return array_of(list(FEATURES), seeds, excluded=EXCLUDED)


def played(seed: int, row: Row) -> SeedRun:
    """Play one seed; the run has its error, if it has failed."""

    async def scenario(cluster: Cluster) -> None:
        await meeting(cluster, row)

    cluster = ClusterPlan(
        nodes=len(nodes_of(row)),
        queues=queues_of(row),
        address_settings=settings_of(row),
        security=security_of(row),
        services=partial(services_of, row),
    )
    return run_one(scenario, ScenarioPlan(cluster=cluster, faults="none"), seed, [])


def main(arguments: Sequence[str] | None = None) -> int:
    """Play seeds; 0 if every pair has met, and nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--result", metavar="NAME", help="the name of a file of docs/results")
    given = parser.parse_args(arguments)
    rows = rows_of(given.first + given.seeds)
    failed: list[int] = []
    simulated_s = 0.0
    for seed in range(given.first, given.first + given.seeds):
        run = played(seed, rows[seed])
        simulated_s += run.simulated_s
        if run.error is not None:
            failed.append(seed)
            print(f"seed {seed}: {', '.join(sorted(rows[seed]))}\n{run.error!r}", flush=True)
    names = list(FEATURES)
    together = counts_of(rows[given.first :], names)
    missing = [pair for pair in pairs_of(names, EXCLUDED) if not together[pair]]
    print(
        f"{given.seeds} seeds, {len(failed)} failed, {simulated_s:.0f} simulated seconds, {len(missing)} pairs missing"
    )
    if given.result:
        figures: dict[str, Any] = {"seeds": given.seeds, "failed": failed, "simulated_s": round(simulated_s)}
        figures["triples_missing"] = missing_triples(rows[given.first :], names, EXCLUDED)
        figures["features"] = names
        figures["pairs"] = [[one, other, together[one, other]] for one, other in pairs_of(names, EXCLUDED)]
        command = " ".join(["python -m qa.pairs", "--seeds", str(given.seeds), "--result", given.result])
        result = {"kind": KIND, "format": 1, "command": command, **about_here(), **figures}
        Path(RESULTS, f"{given.result}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
