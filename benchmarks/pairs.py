"""Measurements of pairs: how long nobody serves after a crash, and what a replica costs."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from benchmarks.processes import START_SECONDS, Process, python
from benchmarks.workload import Workload

MODULE = "benchmarks.pair_nodes"
CLIENTS = "benchmarks.ours"
NAMES = ("a", "b")
#: Of one order, a little longer than the patience of a process.
LIMIT_SECONDS = 230.0
#: The moment of a crash moves against the periods of the nodes.
STEPS, STEP_S = 7, 0.037
#: Messages a second, and for how long, of the sender whose latency a copy may change.
RATE, RATE_SECONDS = 1_000.0, 4.0

Figures = dict[str, float]
Stream = Callable[[str, Workload], Figures]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


class Member:
    """The outer end of a node over its lives."""

    def __init__(self, name: str, pair: Pair) -> None:
        self.name = name
        self._pair = pair
        self._process: Process | None = None

    @property
    def _there(self) -> Process:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Begin a life."""
        self._process = self._pair.process("node", self.name)
        self._process.tell(name=self.name, urls=self._pair.urls)
        self._process.hear(START_SECONDS)

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Give it an order, and wait for the answer."""
        self._there.tell(do=do, **order)
        return self._there.hear(LIMIT_SECONDS)

    def lose(self, *, silent: bool) -> float:
        """Kill it, or let it stand still; returns the moment."""
        moment = time.monotonic()
        os.kill(self._there.pid, signal.SIGSTOP if silent else signal.SIGKILL)
        return moment

    def end(self) -> None:
        """See to it that the process is gone."""
        self._there.kill()

    def stop(self) -> None:
        """Let it end."""
        self._there.tell(do="stop")
        self._there.result(LIMIT_SECONDS)


class Pair:
    """Two nodes, each with a place that it keeps."""

    def __init__(self, stack: ExitStack, workload: Workload) -> None:
        self._stack = stack
        self._workload = workload
        ports = free_ports(len(NAMES))
        self.urls = {name: f"tcp://127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)}
        self.members = [Member(name, self) for name in NAMES]

    def process(self, role: str, name: str) -> Process:
        """A process of this measurement that is up."""
        folder = Path(self._workload.directory) / f"process-{name}"
        folder.mkdir(exist_ok=True)
        process = self._stack.enter_context(python(MODULE, role, self._workload, directory=folder))
        process.hear(START_SECONDS)
        return process


@contextmanager
def pair_of(workload: Workload) -> Iterator[Pair]:
    """A pair of which nothing runs yet."""
    with ExitStack() as stack:
        yield Pair(stack, workload)


def failover(workload: Workload) -> Figures:
    """Lose the node that serves again and again; a client tells how long it got no confirm."""
    found: list[Figures] = []
    with pair_of(workload) as pair:
        acting, waiting = pair.members
        acting.start()
        acting.ask("fill", count=workload.count)
        waiting.start()
        sender = pair.process("sender", "sender")
        sender.tell(urls=pair.urls)
        sender.hear(START_SECONDS)
        for trial in range(workload.trials):
            waiting.ask("ready")
            time.sleep(trial % STEPS * STEP_S)
            lost = acting.lose(silent=workload.silent)
            marks = waiting.ask("serves")
            sender.tell(do="outage", since=lost, served=marks["serves"])
            ended = float(sender.hear(LIMIT_SECONDS)["ended"])
            found.append(
                {
                    "outage": ended - lost,
                    "noticed": marks["opens"] - lost,
                    "opened": marks["serves"] - marks["opens"],
                    "reached": ended - marks["serves"],
                }
            )
            acting.end()
            acting.start()
            acting, waiting = waiting, acting
        sender.tell(do="stop")
        sender.result(LIMIT_SECONDS)
        for member in (waiting, acting):
            member.stop()
    return summed_up(found) | {"messages": workload.count}


def summed_up(trials: Sequence[Figures]) -> Figures:
    """Percentiles of the outages, and the medians of their parts, in seconds."""
    outages = sorted(one["outage"] for one in trials)
    parts = {f"{name}_s": statistics.median(one[name] for one in trials) for name in ("noticed", "opened", "reached")}
    return {
        "p50_s": statistics.median(outages),
        "p99_s": outages[min(len(outages) - 1, int(len(outages) * 0.99))],
        **parts,
        "trials": len(outages),
    }


def streamed(url: str, workload: Workload) -> Figures:
    """A producer and a consumer at a node; the rate counts from the first send to the last acknowledgement."""
    workload, directory = attrs.evolve(workload, url=url), Path(workload.directory)
    with (
        python(CLIENTS, "producer", workload, directory=directory) as producer,
        python(CLIENTS, "consumer", workload, directory=directory) as consumer,
    ):
        for client in (producer, consumer):
            client.hear(START_SECONDS)
        consumer.tell()
        producer.tell()
        sent, got = producer.result(LIMIT_SECONDS), consumer.result(LIMIT_SECONDS)
    seconds = max(sent["ended"], got["ended"]) - sent["started"]
    latencies = {name: value for name, value in got.items() if name.endswith("_us")}
    return {"rate": workload.count / seconds, "messages": workload.count, "seconds": seconds, **latencies}


def replicated(workload: Workload, stream: Stream) -> Figures:
    """The stream of P1 through one node, and then through a primary whose replica is in sync."""
    plain = stream("ours", attrs.evolve(workload, kind="stream", policy=""))
    with pair_of(workload) as pair:
        for member in pair.members:
            member.start()
        pair.members[0].ask("fill", count=0)
        pair.members[0].ask("copied")
        figures = streamed(pair.urls["a"], attrs.evolve(workload, kind="stream"))
        for member in reversed(pair.members):
            member.stop()
    return {**figures, "plain_rate": plain["rate"], "share": figures["rate"] / plain["rate"]}


def catch_up(workload: Workload) -> Figures:
    """A replica comes to a full store while messages are sent; how fast it copies, and what that costs them."""
    paced = attrs.evolve(workload, kind="stream", frame=1, rate=RATE, count=int(RATE * RATE_SECONDS))
    with pair_of(workload) as pair:
        first, second = pair.members
        first.start()
        first.ask("fill", count=workload.count)
        alone = streamed(pair.urls["a"], paced)
        second.start()
        during = streamed(pair.urls["a"], paced)
        copied = first.ask("copied")
        for member in (second, first):
            member.stop()
    return {
        "rate": workload.count / copied["seconds"],
        "copy_s": copied["seconds"],
        "messages": workload.count,
        "alone_p50_us": alone["p50_us"],
        "alone_p99_us": alone["p99_us"],
        "p50_us": during["p50_us"],
        "p99_us": during["p99_us"],
        "slower": during["p50_us"] / alone["p50_us"],
    }
