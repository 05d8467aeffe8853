"""Kill a query of Spark at random places: ``python -m qa.spark --runs 40 --seed 1 --result spark``."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from qa.results import RESULTS, about_here

#: Every place is armed so often at least, and the broker dies in one run of so many.
_TIMES: Final = 2
_BROKER_SHARE: Final = 4
#: Seconds after the start of a run at which the broker dies.
_BROKER_DIES_S: Final = (0.5, 4.0)
#: Messages of a batch of the last run, which finds what all the others have left.
_LAST: Final = 500
_ROOT: Final = Path(__file__).parents[2]


def session(folder: Path) -> Any:
    """A session of Spark with two cores, whose workers find this project."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark starts processes to plan each job, from daemons that it names itself: these have everything imported, too.
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\nif 'pyspark.daemon' in sys.orig_argv:\n    import meshq.spark.hooks, pyspark.worker\n"
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


def plan(runs: int, seed: int) -> list[tuple[str, float | None]]:
    """The place of each run, and when the broker dies in it."""
    from qa.spark._killing_source import HOOKS

    chance = random.Random(seed)
    places = [*HOOKS * _TIMES, *chance.choices(HOOKS, k=max(0, runs - _TIMES * len(HOOKS)))]
    chance.shuffle(places)
    # A query asks for its first place only before its first batch.
    places.sort(key=lambda place: place != HOOKS[0])
    return [
        (place, chance.uniform(*_BROKER_DIES_S) if chance.randrange(_BROKER_SHARE) == 0 else None) for place in places
    ]


def kill_and_restart(runs: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run the query until each place has been armed; return the hits, and every broken promise."""
    from qa.spark._killed_query import MESSAGES, KilledQuery

    hit: Counter[str] = Counter()
    armed: Counter[str] = Counter()
    brokers = failed = 0
    query = KilledQuery(session(folder), folder / "work")
    try:
        for number, (place, dies) in enumerate(plan(runs, seed)):
            query.send()
            query.strikes.arm(place)
            armed[place] += 1
            failure = query.run(broker_dies_after_s=dies)
            brokers += dies is not None
            failed += bool(failure)
            struck = query.strikes.struck(place)
            hit[place] += struck
            print(
                number,
                place,
                "struck" if struck else "not struck",
                "" if dies is None else f"broker {dies:.1f} s",
                flush=True,
            )
        for _ in range(3):
            failure = query.run(most=_LAST)
            if not failure:
                break
        problems = ([f"the last run has failed: {failure[:500]}"] if failure else []) + query.problems()
    finally:
        query.close()
    return {
        "seed": seed,
        "runs": sum(armed.values()),
        "messages": sum(armed.values()) * MESSAGES,
        "failed_runs": failed,
        "broker_kills": brokers,
        "hit": dict(sorted(hit.items())),
        "problems": problems,
    }


def main() -> int:
    """Run it; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", help="the name of a file of docs/results")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "work").mkdir()
        result = kill_and_restart(given.runs, given.seed, Path(folder))
    result |= {"about": about_here()}
    print(json.dumps(result, indent=1))
    if given.result:
        (_ROOT / RESULTS / f"{given.result}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
