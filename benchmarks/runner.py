"""One measurement of one system: its processes started, spoken to in turn, their reports added up."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from benchmarks import balancers, clusters, networks, pairs
from benchmarks.bystanders import FOREIGN_PERCENT_MAX, Bystanders
from benchmarks.processes import START_SECONDS, BenchmarkError, Process, process_facts, python, scratch, used_between
from benchmarks.workload import Workload

MODULES = {"ours": "benchmarks.ours", "floor": "benchmarks.floor", "redis": "benchmarks.redis_anchor"}
#: After work, and before an idle process is watched: background work of its own comes to rest.
SETTLE_SECONDS = 1.0
#: Of a run, whatever it is told to do.
LIMIT_SECONDS = 120.0
#: A disturbed run is repeated so often, after a pause.
QUIET_ATTEMPTS = 5
QUIET_SECONDS = 2.0
MIB = 1024 * 1024

Figures = dict[str, float]


class Server:
    """The broker of a run: where it is, what it costs, what it synced."""

    def __init__(self, process: Process, facts: dict[str, Any]) -> None:
        self.process = process
        self.url = str(facts["url"])
        self.facts = facts

    def syncs(self) -> float | None:
        """Syncs so far, if they can be read while it runs."""
        return None

    def stop(self) -> Figures:
        """Ask it to stop; its own report."""
        self.process.tell()
        return self.process.result(LIMIT_SECONDS)


class RedisServer(Server):
    def syncs(self) -> float | None:
        from benchmarks import redis_anchor

        return redis_anchor.syncs(self.process, int(self.facts["port"]))

    def stop(self) -> Figures:
        self.process.terminate()
        return {}


@contextmanager
def serving(system: str, workload: Workload) -> Iterator[Server]:
    """A broker of ``system`` that listens; killed at the end unless it has stopped."""
    directory = Path(workload.directory)
    if system == "redis":
        # The other systems are measured without redis-py being there.
        from benchmarks import redis_anchor

        with redis_anchor.running(directory, durable=workload.durable) as (process, port):
            yield RedisServer(process, {"url": f"redis://127.0.0.1:{port}", "port": port})
    else:
        with python(MODULES[system], "broker", workload, directory=directory) as process:
            yield Server(process, process.hear(START_SECONDS))


def stream(system: str, workload: Workload) -> Figures:
    """Producer and consumer at once; the rate counts from the first send to the last confirmed acknowledgement."""
    directory = Path(workload.directory)
    with serving(system, workload) as server:
        workload = attrs.evolve(workload, url=server.url)
        module = MODULES[system]
        with (
            python(module, "producer", workload, directory=directory) as producer,
            python(module, "consumer", workload, directory=directory) as consumer,
        ):
            for client in (producer, consumer):
                client.hear(START_SECONDS)
            before, syncs = process_facts(server.process.pid), server.syncs()
            consumer.tell()
            producer.tell()
            sent = producer.result(LIMIT_SECONDS)
            got = consumer.result(LIMIT_SECONDS)
            cpu, _ = used_between(before, process_facts(server.process.pid))
        synced = (server.syncs() or 0.0) - syncs if syncs is not None else server.stop()["syncs"]
    seconds = max(sent["ended"], got["ended"]) - sent["started"]
    figures = {"rate": workload.count / seconds, "messages": workload.count, "seconds": seconds}
    figures |= {name: value for name, value in got.items() if name.endswith("_us")}
    if workload.durable:
        figures["syncs_per_s"] = synced / seconds
    each = 1e6 / workload.count
    figures |= {"producer_cpu_us": sent["cpu"] * each, "consumer_cpu_us": got["cpu"] * each}
    return figures | {"broker_cpu_us": cpu * each}


def forward(system: str, workload: Workload) -> Figures:
    """A producer at one broker, a consumer at another one, a cluster connection between them.

    Each broker syncs for itself, and both count.  A system without a cluster has one broker for both clients.
    """
    if system != "ours":
        return stream(system, workload)
    directory, module = Path(workload.directory), MODULES[system]
    with serving(system, workload) as far:
        workload = attrs.evolve(workload, url=far.url)
        with python(module, "consumer", workload, directory=directory) as consumer:
            consumer.hear(START_SECONDS)
            # Only who consumes is sent anything: so the consumer is there before the broker that forwards.
            consumer.tell()
            with python(module, "near-broker", workload, directory=directory) as process:
                near = Server(process, process.hear(START_SECONDS))
                workload = attrs.evolve(workload, url=near.url)
                with python(module, "producer", workload, directory=directory) as producer:
                    producer.hear(START_SECONDS)
                    befores = [process_facts(server.process.pid) for server in (near, far)]
                    producer.tell()
                    sent = producer.result(LIMIT_SECONDS)
                    got = consumer.result(LIMIT_SECONDS)
                    afters = [process_facts(server.process.pid) for server in (near, far)]
                stopped = near.stop(), far.stop()
    if stopped[1]["added"] != workload.count:
        raise BenchmarkError(f"{stopped[1]['added']:.0f} messages were stored at the second broker of {workload.count}")
    seconds = max(sent["ended"], got["ended"]) - sent["started"]
    each = 1e6 / workload.count
    cpu = [used_between(before, after)[0] * each for before, after in zip(befores, afters, strict=True)]
    return {
        "rate": workload.count / seconds,
        "messages": workload.count,
        "seconds": seconds,
        "syncs_per_s": sum(report["syncs"] for report in stopped) / seconds,
        "producer_cpu_us": sent["cpu"] * each,
        "consumer_cpu_us": got["cpu"] * each,
        "broker_cpu_us": cpu[0],
        "second_broker_cpu_us": cpu[1],
    }


def inside(system: str, workload: Workload) -> Figures:
    """Everything in one process."""
    with python(MODULES[system], "inprocess", workload, directory=Path(workload.directory)) as process:
        process.hear(START_SECONDS)
        process.tell()
        result = process.result(LIMIT_SECONDS)
    seconds = result["ended"] - result["started"]
    figures = {"rate": workload.count / seconds, "messages": workload.count, "seconds": seconds}
    if workload.durable:
        figures["syncs_per_s"] = result["syncs"] / seconds
    return figures | {"cpu_us": result["cpu"] * 1e6 / workload.count}


def fill(system: str, server: Server, workload: Workload) -> float:
    """Send everything with nobody consuming; what the broker's memory grew by."""
    before = process_facts(server.process.pid)["rss"]
    workload = attrs.evolve(workload, kind="stream", url=server.url)
    with python(MODULES[system], "producer", workload, directory=Path(workload.directory)) as producer:
        producer.hear(START_SECONDS)
        producer.tell()
        producer.result(LIMIT_SECONDS)
    time.sleep(SETTLE_SECONDS)
    return process_facts(server.process.pid)["rss"] - before


def backlog(system: str, workload: Workload) -> Figures:
    """Fill, SIGKILL, start again, consume everything.

    ``restart_s`` counts from the start of the new broker process, its interpreter and its imports included, to the
    first delivery in a consumer process that was up and waiting.  The consumer drains the queue, so a lost message
    fails the run.
    """
    directory = Path(workload.directory)
    with serving(system, workload) as server:
        grown = fill(system, server, workload)
        server.process.kill()
    role = "late-consumer"
    with python(MODULES[system], role, workload, directory=directory) as consumer:
        consumer.hear(START_SECONDS)
        started = time.monotonic()
        with restarted(system, workload) as server:
            consumer.tell(**server.facts)
            first = consumer.result(LIMIT_SECONDS)["first"]
    return {
        "bytes_per_message": grown / workload.count,
        "messages": workload.count,
        "restart_s": first - started,
    }


@contextmanager
def restarted(system: str, workload: Workload) -> Iterator[Server]:
    """The same directory served by a new process, announced as soon as anybody could dial it."""
    directory = Path(workload.directory)
    if system != "redis":
        with serving(system, workload) as server:
            yield server
        return
    from benchmarks import redis_anchor

    port = redis_anchor.free_port()
    with redis_anchor.server(directory, durable=workload.durable, port=port) as process:
        yield RedisServer(process, {"url": f"redis://127.0.0.1:{port}", "port": port})


def idle(system: str, workload: Workload) -> Figures:
    """A broker that nobody talks to."""
    with serving(system, workload) as server:
        time.sleep(SETTLE_SECONDS)
        before, started = process_facts(server.process.pid), time.monotonic()
        time.sleep(workload.seconds)
        after, seconds = process_facts(server.process.pid), time.monotonic() - started
        server.stop()
    cpu, wakeups = used_between(before, after)
    return {
        "rss_mib": after["rss"] / MIB,
        "cpu_percent": 100 * cpu / seconds,
        "wakeups_per_s": wakeups / seconds,
        "seconds": seconds,
    }


KINDS = {"stream": stream, "one": stream, "forward": forward, "inprocess": inside, "backlog": backlog, "idle": idle}
#: What only meshq does.
CLUSTER_KINDS = {
    "redistribute": clusters.redistribute,
    "drain": clusters.drain,
    "join": clusters.join,
    "idle-cluster": clusters.idle,
    "redirects": balancers.redirects,
    "storm": balancers.storm,
    "failover": pairs.failover,
    "replicated": lambda workload: pairs.replicated(workload, stream),
    "catch-up": pairs.catch_up,
    "hops": partial(networks.hops, stream),
    "hops-activemq": partial(networks.beside_activemq, stream),
    "demand": networks.demand,
}


def measure(system: str, workload: Workload) -> Figures:
    """Run ``workload`` once on ``system``, in a directory that is gone afterwards.

    ``foreign_percent``: what others had of the machine's processors meanwhile.
    """
    with scratch() as directory, Bystanders() as others:
        workload = attrs.evolve(workload, directory=str(directory))
        if workload.kind in CLUSTER_KINDS:
            figures = CLUSTER_KINDS[workload.kind](workload)
        else:
            figures = KINDS[workload.kind](system, workload)
    return figures | {"foreign_percent": others.percent}


def measure_undisturbed(system: str, workload: Workload) -> Figures:
    """Run ``workload`` until nobody else has used the machine meanwhile, a few times at most.

    Raises:
        BenchmarkError: somebody else always has.
    """
    for _ in range(QUIET_ATTEMPTS):
        figures = measure(system, workload)
        if figures["foreign_percent"] <= FOREIGN_PERCENT_MAX:
            return figures
        print(f"{system}: others used {figures['foreign_percent']:.0f} % of the machine: again", file=sys.stderr)
        time.sleep(QUIET_SECONDS)
    raise BenchmarkError(
        f"others use more than {FOREIGN_PERCENT_MAX} % of the machine, {QUIET_ATTEMPTS} times in a row"
    )
