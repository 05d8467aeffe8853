"""Kill a query of Spark at random places while a node of its mesh dies, too.

``python -m qa.spark --runs 40 --seed 1 --result spark_mesh --resume``: in rounds, each a new mesh and a new query that
is started again until every place of the round was armed.  What a round has found is kept at once, and ``--resume``
goes on with the rounds that are not there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qa.arguments import COUNT
from qa.results import ResultFile, ResultFormat, about_here, add_result_option

if TYPE_CHECKING:
    from qa.spark._killed_query import NodeDeath

#: Nodes of the mesh, and runs of a round.
NODES: Final = 3
ROUND: Final = 8
#: Every place is armed so often at least, and a node dies in one run of so many.
_TIMES: Final = 2
_NODE_SHARE: Final = 2
#: Seconds after the start of a run at which a node dies, and how long it is away.
_NODE_DIES_S: Final = (0.5, 4.0)
_NODE_IS_AWAY_S: Final = (0.0, 3.0)
#: How often a run is tried in which its place is not reached.
_TRIES: Final = 3
#: Messages of a batch of the last run, which finds what all the others have left; and how often it may be tried.
_LAST: Final = 500
_LAST_TRIES: Final = 3
_ROOT: Final = Path(__file__).parents[2]
FORMAT: Final = ResultFormat(
    "spark",
    parts="rounds",
    parts_type=dict,
    part_fields={"runs": int, "messages": int, "failed_runs": int, "node_kills": int, "hit": dict, "problems": list},
    once_unnamed=True,
)


def session(folder: Path) -> Any:
    """A session of Spark with two cores, whose workers find this project."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark starts processes to plan each job, from daemons that it names itself: these have everything imported, too.
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\nif 'pyspark.daemon' in sys.orig_argv:\n    import meshq.spark.hooks, pyspark.worker\n"
        "if any(one.endswith('daemon') for one in sys.orig_argv):\n"
        "    import qa.spark.sampler\n    qa.spark.sampler.sample_children()\n"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), str(_ROOT), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.master("local[2]").appName("kills")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:+UseSerialGC",
        "spark.local.dir": str(folder),
        # Its workers are forked from what has imported everything.
        "spark.python.daemon.module": "meshq.spark.hooks._preloading_daemon",
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Run(NamedTuple):
    """A run of the query: the place at which it is killed, and the node that dies meanwhile, if any."""

    place: str
    death: NodeDeath | None


def plan(runs: int, seed: int) -> list[list[Run]]:
    """The rounds: the runs of each, with every place armed at least twice in all."""
    from qa.spark._killed_query import NodeDeath
    from qa.spark._killing_source import HOOKS

    chance = random.Random(seed)
    places = [*HOOKS * _TIMES, *chance.choices(HOOKS, k=max(0, runs - _TIMES * len(HOOKS)))]
    chance.shuffle(places)
    planned = []
    for place in places:
        death = NodeDeath(chance.randrange(NODES), chance.uniform(*_NODE_DIES_S), chance.uniform(*_NODE_IS_AWAY_S))
        planned.append(Run(place, death if chance.randrange(_NODE_SHARE) == 0 else None))
    # A query asks for its first place only before its first batch.
    rounds = [planned[start : start + ROUND] for start in range(0, len(planned), ROUND)]
    return [sorted(one, key=lambda run: run.place != HOOKS[0]) for one in rounds]


def play(spark: Any, runs: list[Run], folder: Path) -> dict[str, Any]:
    """Play a round; return the hits, and every broken promise."""
    from qa.spark._killed_query import MESSAGES, KilledQuery

    hit: Counter[str] = Counter()
    played = failed = died = 0
    query = KilledQuery(spark, folder, nodes=NODES)
    try:
        for run in runs:
            for attempt in range(_TRIES):
                # The death of a node may end a run before it comes to its place.
                death = run.death if attempt == 0 else None
                query.send()
                query.strikes.arm(run.place)
                failure = query.run(death=death)
                failed += bool(failure)
                struck = query.strikes.struck(run.place)
                played, died, hit[run.place] = played + 1, died + (death is not None), hit[run.place] + struck
                node = "" if death is None else f", node {death.node + 1} after {death.after_s:.1f} s"
                print(f"{played}: {run.place} {'struck' if struck else 'not struck'}{node}", flush=True)
                if struck:
                    break
                print(f"   {' '.join(failure.split())[-300:] or 'it has ended'}", flush=True)
        for _ in range(_LAST_TRIES):
            failure = query.run(most=_LAST)
            if not failure:
                break
        problems = ([f"the last run has failed: {failure[:500]}"] if failure else []) + query.problems()
    finally:
        query.close()
    return {
        "runs": played,
        "messages": played * MESSAGES,
        "failed_runs": failed,
        "node_kills": died,
        "hit": dict(sorted(hit.items())),
        "problems": problems,
        "about": about_here(),
    }


def total(seed: int, runs: int, rounds: dict[str, Any]) -> dict[str, Any]:
    """The result of all rounds that were played."""
    hit: Counter[str] = Counter()
    for one in rounds.values():
        hit.update(one["hit"])
    sums = {
        name: sum(one[name] for one in rounds.values()) for name in ("runs", "messages", "failed_runs", "node_kills")
    }
    return {
        "seed": seed,
        "wanted_runs": runs,
        "nodes": NODES,
        **sums,
        "hit": dict(sorted(hit.items())),
        "problems": [f"round {name}: {text}" for name, one in rounds.items() for text in one["problems"]],
        "rounds": rounds,
    }


def main() -> int:
    """Run it; 0 if every promise was kept, and every place has struck twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=COUNT, default=40, metavar="N", help="kills (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="what they are drawn by (%(default)s)")
    add_result_option(parser, FORMAT, "write the run down, after each round, in", _ROOT)
    parser.add_argument("--resume", action="store_true", help="go on with the rounds that the result has not")
    given = parser.parse_args()
    file: ResultFile | None = given.result
    rounds: dict[str, Any] = {}
    if given.resume and file is not None:
        before = file.read()
        if (before.get("seed"), before.get("wanted_runs")) == (given.seed, given.runs):
            rounds = before["rounds"]
    planned = {str(number): runs for number, runs in enumerate(plan(given.runs, given.seed), 1)}
    result = total(given.seed, given.runs, rounds)
    with tempfile.TemporaryDirectory() as folder:
        spark = session(Path(folder))
        try:
            for name, runs in planned.items():
                if name in rounds:
                    continue
                work = Path(folder) / f"round-{name}"
                work.mkdir()
                rounds[name] = play(spark, runs, work)
                result = total(given.seed, given.runs, rounds)
                if file is not None:
                    file.write(result)
        finally:
            spark.stop()
    print(json.dumps({name: value for name, value in result.items() if name != "rounds"}, indent=1))
    return 1 if result["problems"] or min(result["hit"].values()) < _TIMES else 0


if __name__ == "__main__":
    sys.exit(main())
