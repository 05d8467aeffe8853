"""The rows: which workload each system runs for it, and what the project has promised about the outcome."""

from __future__ import annotations

from typing import Any

import attrs

from benchmarks.row import Line, Nominal, Row, Target
from benchmarks.workload import Workload

#: Floor frames and Redis pipelines of the pipelined rows; more per pipeline gains Redis nothing.
FLOOR_FRAME = 100
REDIS_PIPELINE = 1_000
SYSTEMS = ("ours", "floor", "redis")
FLOOR_TO_REDIS = 4.0
#: A p99.9 needs more messages than two seconds of them.
LATENCY_STRETCH = 3.0
#: How long an idle broker is watched: 0.1 % of it is 20 ms of CPU, and the kernel counts nanoseconds.
IDLE_SECONDS = 20.0
#: Losses of a node in one measurement of a failover.
TRIALS = 20


def _rate(title: str, *targets: Target) -> tuple[Line, ...]:
    return (Line(metric="rate", title=title, unit="/s", targets=targets),)


def _stream(key: str, lines: tuple[Line, ...], base: Workload, ours: Workload, nominal: Nominal) -> Row:
    redis = attrs.evolve(base, frame=REDIS_PIPELINE if base.frame > 1 else 1)
    return Row(key=key, lines=lines, workloads={"ours": ours, "floor": base, "redis": redis}, nominal=nominal)


def _inside(key: str, title: str, base: Workload, nominal: Nominal) -> Row:
    lines = _rate(title, Target(against="floor", at_least=0.3))
    return Row(key=key, lines=lines, workloads={"ours": base, "floor": base}, nominal=nominal)


def _pipelined() -> tuple[Row, ...]:
    base = Workload(frame=FLOOR_FRAME)
    large = attrs.evolve(base, size=1_024)
    memory = attrs.evolve(base, durable=False)
    fast = {"ours": 500_000, "floor": 700_000, "redis": 110_000}
    half = Target(against="floor", at_least=0.5)
    anchor = Target(against="redis", at_least=2.5)
    return (
        attrs.evolve(
            _stream("P1", _rate("durable, synced, pipelined, 100 B", half, anchor), base, base, fast),
            floor_to_redis=FLOOR_TO_REDIS,
        ),
        _stream(
            "P1-properties",
            _rate("the same with 3 properties, one read"),
            base,
            attrs.evolve(base, properties=3),
            fast,
        ),
        _stream(
            "P1-duplicate-id",
            _rate("the same with a duplicate id each"),
            base,
            attrs.evolve(base, duplicate_ids=True),
            fast,
        ),
        _stream(
            "P2",
            _rate("durable, synced, pipelined, 1 KiB", half),
            large,
            large,
            {"ours": 250_000, "floor": 300_000, "redis": 38_000},
        ),
        _stream(
            "P5",
            _rate("non-durable, pipelined, acknowledged, 100 B", Target(against="floor", at_least=0.6)),
            memory,
            memory,
            {"ours": 600_000, "floor": 900_000, "redis": 200_000},
        ),
    )


def _one_by_one() -> tuple[Row, ...]:
    one = Workload(kind="one", frame=1, window=1)
    paced = Workload(frame=1, rate=1_000.0)
    twice = (Target(against="redis", at_most=2.0),)
    return (
        _stream(
            "P3",
            _rate("durable, one at a time", Target(against="floor", at_least=1.0)),
            one,
            one,
            {"ours": 2_500, "floor": 2_100, "redis": 2_800},
        ),
        attrs.evolve(
            _stream(
                "P4",
                (
                    Line(metric="p50_us", title="latency at 1,000/s, durable, p50", unit="µs", targets=twice),
                    Line(metric="p99_us", title="latency at 1,000/s, durable, p99", unit="µs", targets=twice),
                    Line(metric="p999_us", title="latency at 1,000/s, durable, p99.9", unit="µs"),
                ),
                paced,
                paced,
                dict.fromkeys(SYSTEMS, 1_000),
            ),
            stretch=LATENCY_STRETCH,
        ),
    )


def _in_process() -> tuple[Row, ...]:
    batches = Workload(kind="inprocess", frame=100, durable=False)
    return (
        _inside(
            "P6-durable",
            "in process, durable, batches of 100 from four tasks",
            attrs.evolve(batches, durable=True, tasks=4),
            {"ours": 500_000, "floor": 1_000_000},
        ),
        _inside(
            "P6-batches",
            "in process, non-durable, batches of 100",
            batches,
            {"ours": 1_000_000, "floor": 3_000_000},
        ),
        _inside(
            "P6-single",
            "in process, non-durable, one by one",
            attrs.evolve(batches, frame=1),
            {"ours": 60_000, "floor": 150_000},
        ),
    )


def _forwarded() -> tuple[Row, ...]:
    base = Workload(frame=FLOOR_FRAME)
    # The floor has no cluster: its broker is the one of P1.
    lines = _rate(
        "forwarded A→B over a cluster connection, durable, exactly once", Target(against="floor", at_least=0.05)
    )
    workloads = {"ours": attrs.evolve(base, kind="forward"), "floor": base}
    large = attrs.evolve(base, size=1_024)
    filtered = attrs.evolve(base, kind="forward", properties=3, filter="property0 = 'value 1' OR property1 LIKE 'v%'")
    fast = {"ours": 200_000, "floor": 700_000}
    return (
        Row(key="P7", lines=lines, workloads=workloads, nominal=fast),
        Row(
            key="P7-1KiB",
            lines=_rate("the same with 1 KiB"),
            workloads={"ours": attrs.evolve(large, kind="forward"), "floor": large},
            nominal={"ours": 100_000, "floor": 300_000},
        ),
        Row(
            key="P7-filter",
            lines=_rate("the same with 3 properties, to a consumer with a filter on two"),
            workloads={"ours": filtered, "floor": base},
            nominal={"ours": 60_000, "floor": 700_000},
        ),
    )


def _clusters() -> tuple[Row, ...]:
    """What nodes do with each other: no target, nobody else here does it."""
    million = Workload(kind="redistribute", count=1_000_000)
    two_gib = Workload(kind="drain", count=32, size=64 * 1024 * 1024)
    joins = [
        Row(
            key=f"P15-join-{nodes}",
            lines=(
                Line(metric="join_s", title=f"a node joins, {nodes} of 1,000 queues each: all known", unit="s"),
                Line(metric="frames", title=f"a node joins, {nodes} in all: frames received by all", unit=""),
                Line(metric="cpu_s", title=f"a node joins, {nodes} in all: CPU of all", unit="s"),
            ),
            workloads={"ours": Workload(kind="join", nodes=nodes, queues=1_000)},
        )
        for nodes in (2, 4, 8, 16)
    ]
    return (
        Row(
            key="P15-redistribution",
            lines=_rate("a million waiting messages go to a consumer at another node"),
            workloads={"ours": million},
        ),
        Row(
            key="P15-drain",
            lines=_rate("a million messages are drained to another node"),
            workloads={"ours": attrs.evolve(million, kind="drain")},
        ),
        Row(
            key="P15-drain-large",
            lines=(
                Line(metric="mib_per_s", title="2 GiB in bodies of 64 MiB are drained", unit="MiB/s"),
                Line(metric="growth_mib", title="2 GiB in bodies of 64 MiB are drained: more memory", unit="MiB"),
            ),
            workloads={"ours": two_gib},
        ),
        *joins,
        Row(
            key="P15-idle",
            lines=(
                Line(metric="cpu_percent", title="idle cluster of 16: CPU of each node", unit="%"),
                Line(metric="wakeups_per_s", title="idle cluster of 16: wake-ups of each node", unit="/s"),
            ),
            workloads={"ours": Workload(kind="idle-cluster", nodes=16, queues=10, seconds=IDLE_SECONDS)},
        ),
    )


def _balancers() -> tuple[Row, ...]:
    """What a front does for its clients, and how even it keeps four targets: nobody else here does it."""
    return (
        Row(
            key="P16-redirects",
            lines=(
                *_rate("5,000 clients, 100 at a time, are sent on by a front and send a message"),
                Line(metric="p50_ms", title="a client is sent on: to its first confirmed message", unit="ms"),
                Line(metric="p99_ms", title="a client is sent on: to its first confirmed message, p99", unit="ms"),
            ),
            workloads={"ours": Workload(kind="redirects", count=5_000)},
        ),
        Row(
            key="P16-storm",
            lines=(
                Line(
                    metric="share",
                    title="2,000 clients come back at once, least_connections: the most that one of four targets has",
                    unit="shares",
                    targets=(Target(at_most=1.2),),
                ),
                Line(metric="seconds", title="2,000 clients come back after all targets were killed", unit="s"),
            ),
            workloads={"ours": Workload(kind="storm", count=2_000)},
        ),
    )


def _failovers() -> tuple[Row, ...]:
    """How long a client gets no confirm after the loss of the node that serves, and what the time was spent on."""

    def row(key: str, what: str, bound: float | None, **about: Any) -> Row:
        targets = () if bound is None else (Target(at_most=bound),)
        lines = (
            Line(metric="p50_s", title=f"{what}: no confirm, p50", unit="s"),
            Line(metric="p99_s", title=f"{what}: no confirm, p99", unit="s", targets=targets),
            Line(metric="noticed_s", title=f"{what}: until the other node opens the store", unit="s"),
            Line(metric="opened_s", title=f"{what}: until it serves from then", unit="s"),
            Line(metric="reached_s", title=f"{what}: until the client has a confirm from then", unit="s"),
        )
        workload = Workload(kind="failover", **{"count": 1_000, "trials": TRIALS, **about})
        return Row(key=key, lines=lines, workloads={"ours": workload})

    silence = 1.0
    stored = [
        row(
            f"P9-stored-{name}",
            f"crash, shared store with {count:,} messages",
            None,
            policy="shared_store",
            count=count,
            trials=3,
        )
        for name, count in (("10k", 10_000), ("100k", 100_000), ("1M", 1_000_000))
    ]
    return (
        row("P9-shared", "crash, shared store, defaults", 1.0, policy="shared_store"),
        row("P9-shared-tuned", "crash, shared store, tuned", 0.3, policy="shared_store", tuned=True),
        row("P9-replication", "crash, replication, defaults", 1.0, policy="replication"),
        row("P9-replication-tuned", "crash, replication, tuned", 0.3, policy="replication", tuned=True),
        row(
            "P9-replication-silent",
            f"silence, replication, tuned (connection_ttl of {silence:g} s)",
            None,
            policy="replication",
            tuned=True,
            silent=True,
        ),
        *stored,
    )


def _replicated() -> tuple[Row, ...]:
    """What a replica costs, beside the stream of one node in the same run."""
    base = Workload(kind="replicated", frame=FLOOR_FRAME, policy="replication")

    def row(key: str, what: str, size: int, nominal: float) -> Row:
        lines = (
            *_rate(f"durable at a primary and a replica in sync, {what}"),
            Line(metric="plain_rate", title=f"the same at one node, {what}", unit="/s"),
            Line(
                metric="share", title=f"with a replica, of one node, {what}", unit="", targets=(Target(at_least=0.6),)
            ),
        )
        return Row(key=key, lines=lines, workloads={"ours": attrs.evolve(base, size=size)}, nominal={"ours": nominal})

    return (
        row("P10", "100 B", 100, 200_000),
        row("P10-1KiB", "1 KiB", 1_024, 100_000),
        Row(
            key="P10-catch-up",
            lines=(
                *_rate("a replica copies half a million messages of 100 B, while 1,000/s are sent"),
                Line(metric="alone_p50_us", title="latency at 1,000/s, durable, without a replica, p50", unit="µs"),
                Line(metric="alone_p99_us", title="latency at 1,000/s, durable, without a replica, p99", unit="µs"),
                Line(metric="p50_us", title="latency at 1,000/s, durable, while a replica copies, p50", unit="µs"),
                Line(metric="p99_us", title="latency at 1,000/s, durable, while a replica copies, p99", unit="µs"),
            ),
            workloads={"ours": Workload(kind="catch-up", policy="replication", count=500_000)},
        ),
    )


def _networks() -> tuple[Row, ...]:
    """What a hop costs between brokers of a network, beside one broker in the same run, and what demand costs."""
    hops = [
        Row(
            key=f"P17-hops-{number}",
            lines=(
                *_rate(f"durable, synced, 100 B, forwarded over {title}"),
                Line(
                    metric="to_one_broker",
                    title=f"forwarded over {title}, beside one broker in the same run",
                    unit="x P1",
                    # Messages times hops are promised to be 0.4 of one broker: all of a chain share one machine.
                    targets=(Target(at_least=round(0.4 / number, 3)),),
                ),
                Line(metric="cpu_per_hop_us", title=f"forwarded over {title}: CPU of brokers a hop", unit="µs"),
            ),
            workloads={"ours": Workload(kind="hops", nodes=number + 1, frame=FLOOR_FRAME)},
            nominal={"ours": 200_000 / number},
        )
        for number, title in ((1, "one hop"), (3, "three hops"))
    ]
    # What a connector has under way unless it is told otherwise.
    usual = attrs.evolve(hops[0].workloads["ours"], window=1_000)
    hops.append(
        Row(
            key="P17-hops-1-prefetch",
            lines=_rate("durable, synced, 100 B, forwarded over one hop with the default prefetch of 1,000"),
            workloads={"ours": usual},
            nominal={"ours": 100_000},
        )
    )
    return (
        *hops,
        *_beside_activemq(),
        Row(
            key="P17-demand",
            lines=(
                Line(
                    metric="exchange_s",
                    title="10,000 subscriptions are told to a broker that links",
                    unit="s",
                    targets=(Target(at_most=1.0),),
                ),
                Line(metric="again_s", title="10,000 subscriptions are told once more, to a new link", unit="s"),
                Line(metric="again_cpu_s", title="10,000 subscriptions: CPU of both brokers", unit="s"),
            ),
            workloads={"ours": Workload(kind="demand", queues=10_000)},
        ),
    )


def _beside_activemq() -> tuple[Row, ...]:
    """Messages through a chain of brokers, and some of them through one of ActiveMQ Classic in the same run."""
    return tuple(
        Row(
            key=f"P17-activemq-{number}",
            lines=(
                *_rate(f"durable, synced, 100 B, forwarded over {title}, with ActiveMQ Classic in the same run"),
                Line(metric="activemq_rate", title=f"ActiveMQ Classic over {title}, persistent, 100 B", unit="/s"),
                Line(
                    metric="to_activemq",
                    title=f"forwarded over {title}, beside ActiveMQ Classic",
                    unit="x ActiveMQ",
                    targets=(Target(at_least=20.0),),
                ),
                Line(
                    metric="activemq_cpu_per_hop_us",
                    title=f"ActiveMQ Classic: CPU of brokers a hop, {title}",
                    unit="µs",
                ),
            ),
            workloads={"ours": Workload(kind="hops-activemq", nodes=number + 1, frame=FLOOR_FRAME)},
            nominal={"ours": 200_000 / number},
            activemq=True,
        )
        for number, title in ((1, "one hop"), (3, "three hops"))
    )


def _features() -> tuple[Row, ...]:
    """What a stream costs that uses what most streams don't, beside the floor and the anchor of one that doesn't."""
    base = Workload(frame=FLOOR_FRAME)
    fast = {"ours": 150_000, "floor": 700_000, "redis": 110_000}
    used = {
        "priorities": ("ten priorities", attrs.evolve(base, priorities=10)),
        "filter": (
            "3 properties, a consumer with a filter on two",
            attrs.evolve(base, properties=3, filter="property0 = 'value 1' OR property1 LIKE 'value%'"),
        ),
        "paged": ("a queue that keeps 64 KiB in memory", attrs.evolve(base, page_at=64 * 1_024)),
        "transactions": ("100 messages a transaction", attrs.evolve(base, transaction=100)),
    }
    return tuple(
        _stream(f"P14-{name}", _rate(f"durable, synced, 100 B: {title}"), base, ours, fast)
        for name, (title, ours) in used.items()
    )


def _states() -> tuple[Row, ...]:
    backlog = Workload(kind="backlog", count=1_000_000)
    return (
        Row(
            key="P8",
            lines=(
                Line(
                    metric="bytes_per_message",
                    title="a million messages queued: memory each",
                    unit="B",
                    targets=(Target(at_most=200.0),),
                ),
                Line(
                    metric="restart_s",
                    title="restart after SIGKILL, from the start of the process to the first delivery",
                    unit="s",
                    targets=(Target(at_most=2.0),),
                ),
            ),
            workloads={"ours": backlog, "redis": attrs.evolve(backlog, frame=REDIS_PIPELINE)},
        ),
        Row(
            key="P13",
            lines=(
                Line(
                    metric="rss_mib",
                    title="idle with 1,000 empty queues: memory",
                    unit="MiB",
                    targets=(Target(at_most=60.0),),
                ),
                Line(
                    metric="cpu_percent",
                    title="idle with 1,000 empty queues: CPU",
                    unit="%",
                    targets=(Target(at_most=0.1),),
                ),
                Line(
                    metric="wakeups_per_s",
                    title="idle with 1,000 empty queues: wake-ups",
                    unit="/s",
                ),
            ),
            workloads={"ours": Workload(kind="idle", queues=1_000, seconds=IDLE_SECONDS)},
        ),
    )


ROWS: tuple[Row, ...] = (
    *_pipelined(),
    *_one_by_one(),
    *_in_process(),
    *_forwarded(),
    *_states(),
    *_features(),
    *_clusters(),
    *_balancers(),
    *_failovers(),
    *_replicated(),
    *_networks(),
)


def chosen(names: str | None) -> tuple[Row, ...]:
    """The rows named, in their own order: ``P1`` means all its variants, ``P1-properties`` that one."""
    rows = sorted(ROWS, key=lambda row: int(row.family[1:]))
    if names is None:
        return tuple(rows)
    wanted = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    known = [row.family for row in rows] + [row.key for row in rows]
    for name in wanted:
        if name not in known:
            raise ValueError(f"no row {name!r}: there are {', '.join(dict.fromkeys(known))}")
    return tuple(row for row in rows if row.key in wanted or row.family in wanted)
