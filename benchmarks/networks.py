"""Measurements of a network of brokers: messages that go one hop or more, and demand that is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import attrs

from benchmarks import activemq
from benchmarks.clusters import LIMIT_SECONDS
from benchmarks.processes import START_SECONDS, BenchmarkError, Process, process_facts, python, used_between
from benchmarks.workload import Workload

MODULE = "benchmarks.network_nodes"
CLIENTS = "benchmarks.ours"
#: Of so many messages through meshq one goes through ActiveMQ, which takes as long or longer for it.
ACTIVEMQ_SHARE = 40

Figures = dict[str, float]
Stream = Callable[[str, Workload], Figures]


def _broker(stack: ExitStack, workload: Workload, at: int, onward: str) -> tuple[Process, str]:
    """A process with a broker whose connector leads to the one at ``onward``, if there is any; and its URL."""
    directory = Path(workload.directory) / f"broker-{at}"
    directory.mkdir()
    process = stack.enter_context(python(MODULE, "broker", workload, directory=directory))
    process.hear(START_SECONDS)
    process.tell(name=f"broker-{at}", onward=onward)
    return process, str(process.hear(START_SECONDS)["url"])


def hops(stream: Stream, workload: Workload) -> Figures:
    """A producer at the first broker of a chain, a consumer at the last one; before it the same with one broker.

    The ratio to one broker is of one run: so it says something also on a machine that others use.
    """
    plain = stream("ours", attrs.evolve(workload, kind="stream"))
    count, hops = workload.count, workload.nodes - 1
    workload = attrs.evolve(workload, kind="forward")
    with ExitStack() as stack:
        last, url = _broker(stack, workload, hops, "")
        brokers, at_end = [last], attrs.evolve(workload, url=url)
        directory = Path(workload.directory)
        consumer = stack.enter_context(python(CLIENTS, "consumer", at_end, directory=directory))
        consumer.hear(START_SECONDS)
        # Messages go where somebody consumes: so the consumer is there before the brokers that forward.
        consumer.tell()
        for at in reversed(range(hops)):
            process, url = _broker(stack, workload, at, url)
            brokers.append(process)
        at_start = attrs.evolve(workload, url=url)
        producer = stack.enter_context(python(CLIENTS, "producer", at_start, directory=directory))
        producer.hear(START_SECONDS)
        before = [process_facts(broker.pid) for broker in brokers]
        producer.tell()
        sent, got = producer.result(LIMIT_SECONDS), consumer.result(LIMIT_SECONDS)
        after = [process_facts(broker.pid) for broker in brokers]
        for broker in brokers:
            broker.tell()
        added = [broker.result(LIMIT_SECONDS)["added"] for broker in brokers]
    if added != [count] * len(brokers):
        raise BenchmarkError(f"{added} messages were stored at the brokers, the last one first, of {count}")
    seconds = max(sent["ended"], got["ended"]) - sent["started"]
    cpu = [used_between(one, other)[0] * 1e6 / count for one, other in zip(before, after, strict=True)]
    rate = count / seconds
    return {
        "rate": rate,
        "to_one_broker": rate / plain["rate"],
        "one_broker_rate": plain["rate"],
        "cpu_per_hop_us": sum(cpu) / hops,
        "one_broker_cpu_us": plain["broker_cpu_us"],
        "messages": count,
        "seconds": seconds,
    }


def beside_activemq(stream: Stream, workload: Workload) -> Figures:
    """The same messages through a chain of meshq, and some of them through one of ActiveMQ Classic, in the same run."""
    figures = hops(stream, workload)
    few = max(1, workload.count // ACTIVEMQ_SHARE // activemq.TOGETHER) * activemq.TOGETHER
    figures |= activemq.hops(attrs.evolve(workload, count=few))
    return figures | {"to_activemq": figures["rate"] / figures["activemq_rate"]}


def demand(workload: Workload) -> Figures:
    """A broker that has just linked hears of the consumers of another one, each on a queue of its own."""
    with ExitStack() as stack:
        there, url = _broker(stack, workload, 1, "")
        started = time.monotonic()
        here, _ = _broker(stack, workload, 0, url)
        told = here.hear(LIMIT_SECONDS)
        befores = [process_facts(broker.pid) for broker in (here, there)]
        here.tell()
        renewed = here.hear(LIMIT_SECONDS)
        afters = [process_facts(broker.pid) for broker in (here, there)]
        here.tell()
        here.result(LIMIT_SECONDS)
        there.tell()
        there.result(LIMIT_SECONDS)
    cpu = sum(used_between(one, other)[0] for one, other in zip(befores, afters, strict=True))
    return {
        "exchange_s": told["linked"],
        "again_s": renewed["linked"],
        "again_cpu_s": cpu,
        "subscriptions": workload.queues,
        "seconds": time.monotonic() - started,
    }
