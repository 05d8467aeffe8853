"""Measure the time of a simulated cluster in a test: until the cluster has formed, and for ten virtual minutes.

Both are medians of several runs, each with a seed of its own: the formation of five nodes, and ten virtual minutes of
them with a partition for the first five.  Bounds are on real time; the CPU's tells how busy the machine was besides.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import trio
from trio.testing import MockClock

from meshq.errors import invariant
from meshq.testing import Cluster
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.kit._run import run_in_world
from meshq.testing.kit._world import SimulatedWorld
from qa.arguments import COUNT
from qa.results import ResultFile, ResultFormat, about_here, add_result_option

FORMAT: Final = ResultFormat("kit-times")
RUNS: Final = 20
NODES: Final = 5
#: Virtual seconds with a partition, and as many without.
HALF_S: Final = 300.0
#: Seconds of real time that each may take.
FORMED_S_MAX: Final = 0.1
TEN_MINUTES_S_MAX: Final = 1.0


def clocks() -> tuple[float, float]:
    """Return real time and the CPU time of this process, in seconds."""
    return time.perf_counter(), time.process_time()


def one_run(seed: int) -> list[float]:
    """Return the seconds of real and of CPU time of a formation, and of ten virtual minutes afterwards."""
    world = SimulatedWorld(seed, MockClock())
    found: list[float] = []

    async def test() -> None:
        begun = clocks()
        cluster = Cluster(world, ClusterPlan(nodes=NODES, queues=["orders"]))
        await cluster.form()
        formed = clocks()
        cluster.partition(cluster.nodes[: NODES // 2])
        await trio.sleep(HALF_S)
        cluster.heal()
        await trio.sleep(HALF_S)
        invariant(len(cluster.alive) == NODES, "a cluster that is there at the end")
        ended = clocks()
        found.extend((formed[0] - begun[0], ended[0] - formed[0], formed[1] - begun[1], ended[1] - formed[1]))
        await cluster.close()

    run_in_world(world, test)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status: 0, or 1 if a median is more than is allowed."""
    parser = argparse.ArgumentParser(prog="python -m qa.kit_times", description=__doc__)
    parser.add_argument("--runs", type=COUNT, default=RUNS, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--allow", type=float, default=1.0, metavar="X", help="times as long as a quiet machine takes")
    add_result_option(parser, FORMAT, "write")
    options = parser.parse_args(arguments)
    # What is loaded and compiled on first use is no part of it.
    one_run(0)
    runs = [one_run(seed) for seed in range(1, options.runs + 1)]
    found: dict[str, Any] = {"nodes": NODES, "runs": options.runs}
    allowed = {"formed_s": FORMED_S_MAX, "ten_minutes_s": TEN_MINUTES_S_MAX}
    for index, name in enumerate((*allowed, "formed_cpu_s", "ten_minutes_cpu_s")):
        seconds = [run[index] for run in runs]
        found[name] = {"median": round(statistics.median(seconds), 4), "max": round(max(seconds), 4)}
        bound = f" at most {allowed[name] * options.allow:g}" if name in allowed else ""
        sys.stdout.write(f"{name:>18} {found[name]['median']:>10}{bound}\n")
    file: ResultFile | None = options.result
    if file is not None:
        said = sys.argv[1:] if arguments is None else list(arguments)
        command = " ".join(["python -m qa.kit_times", *said])
        result = {"command": command, **about_here()}
        result["kit_times"] = {**found, "allowed": allowed}
        file.write(result)
    return int(any(found[name]["median"] > most * options.allow for name, most in allowed.items()))


if __name__ == "__main__":
    sys.exit(main())
