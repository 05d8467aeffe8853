"""A scenario with many seeds: its faults, its failures, and what is said about them."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio

import meshq
from meshq.errors import DamagedError, SettingsError, UsageError
from meshq.testing import Cluster, EmptySimulationWarning, Fault, OvertimeError, SimulationFailed, simulate
from meshq.testing.scenario._fault import DESTRUCTIVE, KINDS

#: Each of them runs several clusters.
pytestmark = pytest.mark.slow
SENDS = 12


async def orders(cluster: Cluster) -> None:
    """Orders are sent while all kinds of faults happen, and are all there in the end."""
    patient = {"initial_connect_attempts": float("inf"), "reconnect_attempts": float("inf")}
    async with cluster.client(**patient) as client:  # type: ignore[arg-type]
        for number in range(SENDS):
            await client.send("orders", b"%d" % number, duplicate_id=f"order-{number}")
            await trio.sleep(cluster.rng.random() * 3)
    await cluster.healed()
    assert cluster.alive == cluster.nodes
    got = set()
    async with cluster.client() as client, client.consumer("orders") as consumer:
        while (delivery := await consumer.receive(timeout=10)) is not None:
            got.add(int(delivery.body))
            await delivery.ack()
    assert got == set(range(SENDS))


async def forgetful(cluster: Cluster) -> None:
    """What is not durable is gone when its node dies."""
    async with cluster.client("n0") as client:
        await client.send("orders", b"x", durable=False)
        await trio.sleep(30)
    await cluster.healed()
    async with cluster.client("n0") as client:
        assert (await client.queue("orders")).ready == 1, "an order is lost"


#: Only the second one is needed for a failure.
FAULTS = [
    Fault(1, "wall_clock", "n0", amount=60),
    Fault(2, "kill", "n0", seconds=3),
    Fault(10, "partial", ("n0", "n1"), seconds=2),
    Fault(11, "pause", "n1", seconds=2),
]


def test_a_failure_names_its_seed_the_faults_that_it_needs_the_last_events_and_how_to_repeat_it() -> None:
    report = simulate(forgetful, seeds=[4, 5], nodes=2, queues=["orders"], faults=FAULTS)
    assert not report.ok
    assert report.seeds == [4]
    (failure,) = report.failures
    # The kill is needed, and as short as can be.
    assert (failure.seed, failure.faults, failure.drawn) == (4, [attrs.evolve(FAULTS[1], seconds=0.01)], 4)
    lines = str(failure).splitlines()
    assert lines[0] == "seed 4 fails, with 1 of its 4 faults: AssertionError: an order is lost"
    assert "  Fault(at=2, kind='kill', where=('n0',), seconds=0.01)," in lines
    assert len(lines) == 5
    assert any(line.split()[1:] == ["n0", "killed"] for line in failure.events)
    assert any(line.startswith("n0    active") for line in failure.events)
    assert not any("stopping" in line for line in failure.events)
    called = f"simulate({__name__}.forgetful, seeds=[4], nodes=2, queues=['orders'], faults=["
    assert lines[-1].startswith(f"again: {called}")
    with pytest.raises(SimulationFailed, match="seed 4 fails") as raised:
        report.check()
    assert raised.value.__cause__ is failure.error
    assert isinstance(failure.error, AssertionError)


def test_a_failure_without_any_fault_says_so_and_without_shrinking_all_faults_are_named() -> None:
    async def wrong(cluster: Cluster) -> None:
        raise ZeroDivisionError

    report = simulate(wrong, seeds=3, nodes=1, faults=[Fault(1, "kill", "n0")])
    assert str(report.failures[0]).startswith("seed 0 fails, with no fault at all: ZeroDivisionError\nagain: ")
    whole = simulate(forgetful, seeds=1, nodes=2, queues=["orders"], faults=FAULTS, shrink=False)
    assert whole.failures[0].faults == FAULTS
    assert whole.counters == {"wall_clock": 1, "kill": 1, "partial": 1, "pause": 1}


def test_the_failure_of_the_shorter_list_is_of_the_same_type() -> None:
    async def two_ways(cluster: Cluster) -> None:
        await trio.sleep(5)
        assert "n0" in cluster.alive
        raise ZeroDivisionError

    report = simulate(two_ways, seeds=1, nodes=1, faults=[Fault(1, "kill", "n0", 30), Fault(2, "pause", "n0")])
    assert [fault.kind for fault in report.failures[0].faults] == ["kill"]
    assert type(report.failures[0].error) is AssertionError


def test_it_stops_after_so_many_failures_and_counts_all_seeds_before() -> None:
    async def odd(cluster: Cluster) -> None:
        await trio.sleep(1)
        assert cluster.seed % 2 == 0

    settings: dict[str, Any] = {"nodes": 1, "faults": "none"}
    assert simulate(odd, seeds=9, **settings).seeds == [0, 1]
    report = simulate(odd, seeds=9, stop_at=2, **settings)
    assert (report.seeds, [failure.seed for failure in report.failures]) == ([0, 1, 2, 3], [1, 3])
    good = simulate(odd, seeds=[2, 8], **settings)
    assert good.check() is good and good.ok and good.counters == {}
    assert list(good.traces) == [2, 8] and good.simulated_seconds > 0


SEEN: dict[str, str] = {
    "kill": "n0    dead",
    "power_loss": "n0    dead",
    "pause": "n0    paused",
    "restart": "n0    dead",
    "torn": "n0    dead",
    "eio": "n0    dead",
    "eio_once": "n0    dead",
    "partition": "cut: n0 -> n1, n1 -> n0, n0 -> n2, n2 -> n0",
    "partial": "cut: n0 -> n1, n1 -> n0",
    "one_way": "cut: n0 -> n1",
    "flapping": "cut: n0 -> n1, n1 -> n0",
}


@pytest.mark.parametrize("kind", SEEN)
def test_a_fault_lasts_its_time_and_then_ends(kind: Any) -> None:
    where = ("n0", "n1") if kind in ("partial", "one_way", "flapping") else "n0"
    fault = Fault(1, kind, where, seconds=10, amount=3.0 if kind == "flapping" else 0.0)
    reports: list[str] = []

    async def look(cluster: Cluster) -> None:
        async def send() -> None:
            # Without a write or a sync some disks would not fail.
            with trio.move_on_after(20), suppress(meshq.MeshqError):
                async with cluster.client("n0") as client:
                    await client.send("orders", b"x")

        before = cluster.report()
        await trio.sleep(1.5)
        cluster.spawn(None, send)
        await trio.sleep(2)
        reports.append(cluster.report())
        await trio.sleep(10)
        reports.append(cluster.report())
        assert SEEN[kind] not in before

    simulate(look, seeds=1, queues=["orders"], faults=[fault]).check()
    states = [[line for line in report.splitlines() if line.startswith(("n0", "cut"))] for report in reports]
    # Which direction is named first, depends on who has dialed.
    shown = {one for line in states[0] for one in (line[:16].rstrip(), *line.removeprefix("cut: ").split(", "))}
    assert set(SEEN[kind].removeprefix("cut: ").split(", ")) <= shown
    assert [line.split()[:2] for line in states[1]] == [["n0", "active"]]


def test_a_slow_or_lossy_link_a_full_disk_and_a_jump_of_the_clock_are_felt_and_end() -> None:
    faults = [
        Fault(0, "slow", ("test", "n0"), seconds=10, amount=2.0),
        Fault(20, "lossy", ("n0", "test"), seconds=10, amount=0.5),
        Fault(40, "enospc", "n0", seconds=10),
        Fault(60, "wall_clock", "n0", amount=3600),
    ]
    took: list[float] = []

    async def send(cluster: Cluster) -> None:
        for at in (0.1, 15, 20.1, 35, 55):
            await trio.sleep_until(begun + at)
            before = trio.current_time()
            async with cluster.client("n0") as client:
                await client.send("orders", b"x" * 300_000)
            took.append(trio.current_time() - before)
            if at == 35:
                await trio.sleep_until(begun + 40.1)
                with pytest.raises(meshq.AddressFullError):
                    async with cluster.client("n0") as client:
                        # More than what is freed meanwhile.
                        await client.send("orders", bytes(3_000_000))
        async with cluster.client("n0") as client:
            await client.send("short", b"x", ttl=600)
            await trio.sleep_until(begun + 200)
            assert (await client.queue("short")).ready == 0

    async def timed(cluster: Cluster) -> None:
        nonlocal begun
        begun = trio.current_time()
        await send(cluster)

    begun = 0.0
    report = simulate(timed, seeds=1, nodes=1, queues=["orders", "short"], faults=faults).check()
    assert report.counters == {"slow": 1, "lossy": 1, "enospc": 1, "wall_clock": 1}
    slow, fast, lossy, well, room = took
    assert slow > 4 and lossy > 0.5
    assert max(fast, well, room) < 0.5


def test_faults_that_can_not_happen_do_not_and_overlapping_ones_end_each_in_its_time() -> None:
    faults = [
        Fault(1, "kill", "n0", seconds=10),
        Fault(2, "pause", "n0", seconds=1),
        Fault(3, "power_loss", "n0", seconds=1),
        Fault(3, "eio", "n0", seconds=1),
        Fault(1, "one_way", ("n0", "n1"), seconds=10),
        Fault(2, "partition", "n1", seconds=2),
        Fault(20, "enospc", "n1", seconds=5),
        Fault(21, "eio", "n1", seconds=10),
        Fault(22, "kill", "n1", seconds=2),
        Fault(40, "restart", "n0", seconds=3),
        Fault(40, "kill", "n0", seconds=1),
    ]
    seen: list[list[str]] = []

    async def look(cluster: Cluster) -> None:
        begun = trio.current_time()
        for at in (5, 12, 30, 35, 50):
            await trio.sleep_until(begun + at)
            lines = cluster.report_lines()[2:]
            seen.append([" ".join(line.split()[:2]) for line in lines if not line.startswith("cut")])
            seen[-1] += [line for line in lines if line.startswith("cut")]

    report = simulate(look, seeds=1, nodes=2, faults=faults).check()
    assert seen == [
        ["n0 dead", "n1 active", "cut: n0 -> n1"],
        ["n0 active", "n1 active"],
        ["n0 active", "n1 dead"],
        ["n0 active", "n1 active"],
        ["n0 active", "n1 active"],
    ]
    assert report.counters == {
        "kill": 3,
        "one_way": 1,
        "partition": 1,
        "enospc": 1,
        "eio": 1,
        "restart": 1,
    }


def test_healing_ends_faults_for_good_and_a_damaged_store_is_told() -> None:
    async def heal(cluster: Cluster) -> None:
        await trio.sleep(5)
        assert cluster.alive == ["n1"]
        await cluster.healed()
        assert cluster.alive == cluster.nodes
        await trio.sleep(60)
        assert cluster.alive == cluster.nodes

    faults = [Fault(1, "eio", "n0", 1000), Fault(2, "kill", "n0", 1000), Fault(1, "partial", ("n0", "n1"), 1000)]
    simulate(heal, seeds=1, nodes=2, faults=[*faults, Fault(30, "kill", "n1", 1000)]).check()

    async def damaged(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            for _ in range(20):
                await client.send("orders", bytes(10_000))
        await trio.sleep(10)
        await cluster.healed()

    flips = simulate(
        damaged, seeds=20, nodes=1, queues=["orders"], faults=[Fault(3, "flipped", "n0", 1)], stop_at=20, shrink=False
    )
    errors = {type(failure.error) for failure in flips.failures}
    assert errors and all(issubclass(kind, DamagedError) for kind in errors)


def test_invariants_are_looked_at_after_each_fault_and_when_all_is_healed() -> None:
    seen: list[tuple[float, list[str]]] = []

    async def look(cluster: Cluster) -> None:
        seen.append((trio.current_time() - begun, cluster.alive))

    async def wait(cluster: Cluster) -> None:
        nonlocal begun
        begun = trio.current_time()
        await trio.sleep(5)

    begun = 0.0
    faults = [Fault(1, "kill", "n0", 100), Fault(2, "pause", "n1", 100)]
    simulate(wait, seeds=1, nodes=2, faults=faults, invariants=[look]).check()
    assert [alive for _, alive in seen] == [["n1"], [], ["n0", "n1"]]
    assert [round(at) for at, _ in seen[:2]] == [1, 2]

    async def both(cluster: Cluster) -> None:
        assert len(cluster.alive) == 2, "a node is missing"

    report = simulate(wait, seeds=1, nodes=2, faults=faults, invariants=[both])
    assert str(report.failures[0]).startswith("seed 0 fails, with 1 of its 2 faults: AssertionError: a node is missing")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"seeds": 0}, "seeds=0 is not allowed; allowed: how many"),
        ({"seeds": []}, "seeds="),
        ({"seeds": [1, -1]}, "seeds="),
        ({"seeds": "12"}, "seeds='12'"),
        ({"seeds": None}, "seeds=None"),
        ({"duration": 0}, "duration=0"),
        ({"stop_at": 0}, "stop_at=0"),
        ({"nodes": 0}, "nodes=0"),
        ({"invariants": [5]}, "invariants=5 is not allowed; allowed: a list of async functions of the cluster"),
        ({"invariants": orders}, "invariants=<function orders"),
        ({"invariants": None}, "invariants=None"),
        ({"shrink": "no"}, "shrink='no' is not allowed; allowed: True or False"),
        ({"limit": 0}, "limit=0 is not allowed; allowed: simulated seconds, more than 0"),
        (
            {"colour": "red"},
            "colour='red' is not allowed; allowed: no setting of this name; the settings: seeds, nodes, ",
        ),
        ({"faults": "x"}, "faults='x'"),
        ({"seed": 5}, "seed=5 is not allowed; allowed: no setting"),
        (
            {"ha": "gossip"},
            "ha='gossip': this version of meshq has no such backups; allowed: 'replication', 'shared_store'",
        ),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        simulate(orders, **settings)


def test_a_function_that_is_not_async_is_named() -> None:
    def plain(cluster: Cluster) -> None:
        pass

    async def idle(cluster: Cluster) -> None:
        await trio.sleep(5)

    settings: dict[str, Any] = {"seeds": 1, "nodes": 1, "faults": "none"}
    (failure,) = simulate(plain, **settings).failures  # type: ignore[arg-type]
    assert str(failure.error).startswith("the scenario has to be an async function, and <function")
    (failure,) = simulate(idle, invariants=[plain], **settings).failures  # type: ignore[list-item]
    assert str(failure.error).startswith("an invariant has to be an async function, and <function")
    with pytest.raises(SettingsError, match="scenario=5"):
        simulate(5, **settings)  # type: ignore[arg-type]


def test_the_line_that_repeats_a_failure_names_a_scenario_that_others_find_or_says_what_to_do() -> None:
    async def local(cluster: Cluster) -> None:
        raise ZeroDivisionError

    async def holds(cluster: Cluster) -> None:
        pass

    settings: dict[str, Any] = {"seeds": [7], "nodes": 1, "faults": "none"}
    for scenario in (local, lambda cluster: local(cluster)):
        line = str(simulate(scenario, **settings).failures[0]).splitlines()[-1]
        assert line.startswith("again: the same call of simulate, with seeds=[7]: ")
        assert line.endswith("has no name by which it could be imported")
    line = str(simulate(failing, invariants=[holds], limit=60, **settings).failures[0]).splitlines()[-1]
    called = f"simulate({__name__}.failing, seeds=[7], nodes=1, faults='none', limit=60)"
    assert line == f"again: {called}, with the same invariants"


async def failing(cluster: Cluster) -> None:
    raise ZeroDivisionError


def test_a_scenario_that_does_nothing_and_meets_no_fault_says_so() -> None:
    async def nothing(cluster: Cluster) -> None:
        pass

    async def a_fault(cluster: Cluster) -> None:
        cluster.kill("n0")

    with pytest.warns(EmptySimulationWarning, match="nothing has happened"):
        report = simulate(nothing, seeds=2, nodes=1)
    assert report.ok and report.empty == [0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert simulate(a_fault, seeds=1, nodes=1).empty == []


def test_a_seed_that_waits_for_what_never_comes_ends_at_its_limit_and_says_where_it_waits_in_a_line() -> None:
    tried: list[float] = []

    async def waits(cluster: Cluster) -> None:
        tried.append(trio.current_time())
        await trio.sleep_forever()

    faults = [Fault(second, "wall_clock", "n0", amount=1) for second in range(1, 30)]
    report = simulate(waits, seeds=1, nodes=1, faults=faults, limit=9_000)
    (failure,) = report.failures
    assert type(failure.error) is OvertimeError
    assert str(failure.error).splitlines()[0] == "the test is not done after 9060 simulated seconds"
    assert "in test_a_seed_that" in str(failure.error) and "await trio.sleep_forever()" in str(failure.error)
    assert len(str(failure).splitlines()) < 40
    # Runs as long as this are not repeated until the shortest list of faults is found.
    assert len(tried) <= 3


def test_a_setting_of_the_cluster_reaches_it() -> None:
    async def refused(cluster: Cluster) -> None:
        with pytest.raises(meshq.SecurityError):
            async with cluster.client():
                pass

    security = meshq.Security(users={"app": "secret"})
    simulate(refused, seeds=1, nodes=1, faults="none", security=security).check()
    assert issubclass(SettingsError, UsageError)


def test_a_seed_is_the_same_run_again() -> None:
    first, again = (simulate(orders, seeds=[3, 4], queues=["orders"]).check() for _ in range(2))
    assert first.traces == again.traces
    assert first.traces[3] != first.traces[4]


def test_all_kinds_of_faults_happen_and_nothing_that_was_confirmed_is_lost() -> None:
    report = simulate(orders, seeds=24, queues=["orders"]).check()
    assert set(report.counters) == set(KINDS) - DESTRUCTIVE
    assert min(report.counters.values()) > 0


CODE = """
from meshq.testing import simulate
from tests.testing.scenario.test_simulate import orders
print(simulate(orders, seeds=[3], queues=["orders"]).check().traces)
"""


def test_a_seed_is_the_same_run_in_every_process() -> None:
    told = []
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        shown = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True)
        told.append(shown.stdout)
    assert told[0] == told[1] != ""
