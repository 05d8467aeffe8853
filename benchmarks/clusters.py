"""Measurements of a cluster: messages that are redistributed and drained, nodes that join, nodes that idle."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from benchmarks.processes import START_SECONDS, BenchmarkError, Process, process_facts, python, used_between
from benchmarks.workload import Workload

MODULE = "benchmarks.cluster_nodes"
#: Of one order, a little longer than the patience of a node.
LIMIT_SECONDS = 330.0
#: Before an idle cluster is watched.
SETTLE_SECONDS = 2.0
MIB = 1024 * 1024

Figures = dict[str, float]


class NodeEnd:
    """The outer end of a node: orders to it, and its answers."""

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.url = ""

    def join(self, others: Sequence[str]) -> None:
        """Start it as a member of the cluster that lists these."""
        self.process.tell(others=others)
        self.url = str(self.process.hear(START_SECONDS)["url"])

    def begin(self, do: str, **order: Any) -> None:
        """Give it an order whose answer is taken later."""
        self.process.tell(do=do, **order)

    def answer(self) -> dict[str, Any]:
        """The answer to the order."""
        return self.process.hear(LIMIT_SECONDS)

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Give it an order, and wait for the answer."""
        self.begin(do, **order)
        return self.answer()

    def stop(self) -> None:
        """Let it end."""
        self.begin("stop")
        self.process.result(LIMIT_SECONDS)


@contextmanager
def nodes(workload: Workload, number: int) -> Iterator[list[NodeEnd]]:
    """Processes of nodes that have their queues, and are no members of the cluster yet."""
    directory = Path(workload.directory)
    with ExitStack() as stack:
        made = []
        for at in range(number):
            name = f"node-{at}"
            folder = directory / f"process-{at}"
            folder.mkdir()
            process = stack.enter_context(python(MODULE, "node", workload, directory=folder))
            process.hear(START_SECONDS)
            process.tell(name=name)
            made.append(NodeEnd(process, name))
        for node in made:
            node.process.hear(START_SECONDS)
        yield made


def linked(members: Sequence[NodeEnd]) -> None:
    """Have them form a cluster in which each lists the first one, and wait for it."""
    for member in members:
        member.join([members[0].url] if member is not members[0] else [])
    for member in members:
        member.begin("linked", nodes=len(members))
    for member in members:
        member.answer()


def known(members: Sequence[NodeEnd], queues: int) -> float:
    """Wait until all know the queues of all others; returns when the last one did."""
    for member in members:
        others = [other for other in members if other is not member]
        last = [f"{other.name}.{queues - 1}" for other in others]
        member.begin("knows", nodes=len(members), last=last, queues=len(others) * queues)
    return max(float(member.answer()["at"]) for member in members)


def redistribute(workload: Workload) -> Figures:
    """Messages of a queue that nobody consumes go to a node on which somebody begins to."""
    with nodes(workload, 2) as members:
        linked(members)
        members[0].ask("fill")
        plain = attrs.evolve(workload, kind="forward")
        with python("benchmarks.ours", "late-consumer", plain, directory=Path(workload.directory)) as consumer:
            consumer.hear(START_SECONDS)
            started = time.monotonic()
            consumer.tell(url=members[1].url)
            got = consumer.result(LIMIT_SECONDS)
        left = int(members[0].ask("ready")["ready"])
        if left:
            raise BenchmarkError(f"{left} messages are left at the first node of {workload.count}")
        for member in members:
            member.stop()
    seconds = got["ended"] - started
    return {"rate": workload.count / seconds, "messages": workload.count, "seconds": seconds}


def drain(workload: Workload) -> Figures:
    """A node hands all its messages over to another one."""
    with nodes(workload, 2) as members:
        linked(members)
        members[0].ask("fill")
        peaks = [member.ask("facts")["peak"] for member in members]
        answer = members[0].ask("drain")
        there = int(members[1].ask("ready")["ready"])
        if (answer["state"], there) != ("transferred", workload.count):
            raise BenchmarkError(f"{there} messages are at the other node of {workload.count}, {answer['state']}")
        grown = [member.ask("facts")["peak"] - peak for member, peak in zip(members, peaks, strict=True)]
        for member in members:
            member.stop()
    seconds = answer["seconds"]
    return {
        "rate": workload.count / seconds,
        "mib_per_s": workload.count * workload.size / MIB / seconds,
        "growth_mib": max(grown) / MIB,
        "messages": workload.count,
        "seconds": seconds,
    }


def _facts(members: Sequence[NodeEnd]) -> tuple[int, list[Mapping[str, Any]]]:
    frames = sum(int(member.ask("facts")["frames"]) for member in members)
    return frames, [process_facts(member.process.pid) for member in members]


def _used(befores: Sequence[Mapping[str, Any]], afters: Sequence[Mapping[str, Any]]) -> tuple[float, int]:
    used = [used_between(before, after) for before, after in zip(befores, afters, strict=True)]
    return sum(cpu for cpu, _ in used), sum(wakeups for _, wakeups in used)


def join(workload: Workload) -> Figures:
    """A node with its queues joins a cluster of such nodes; time ends when all know the queues of all."""
    with nodes(workload, workload.nodes) as members:
        *before, last = members
        linked(before)
        known(before, workload.queues)
        frames, facts = _facts(before)
        own = process_facts(last.process.pid)
        started = time.monotonic()
        last.join([before[0].url])
        seconds = known(members, workload.queues) - started
        frames_after, facts_after = _facts(members)
        cpu, _ = _used([*facts, own], facts_after)
        for member in members:
            member.stop()
    return {"join_s": seconds, "frames": frames_after - frames, "cpu_s": cpu, "seconds": seconds}


def idle(workload: Workload) -> Figures:
    """A cluster that nobody talks to."""
    with nodes(workload, workload.nodes) as members:
        linked(members)
        known(members, workload.queues)
        time.sleep(SETTLE_SECONDS)
        (_, before), started = _facts(members), time.monotonic()
        time.sleep(workload.seconds)
        seconds, after = time.monotonic() - started, [process_facts(member.process.pid) for member in members]
        cpu, wakeups = _used(before, after)
        for member in members:
            member.stop()
    return {
        "cpu_percent": 100 * cpu / seconds / len(members),
        "wakeups_per_s": wakeups / seconds / len(members),
        "rss_mib": max(facts["rss"] for facts in after) / MIB,
        "seconds": seconds,
    }
