"""The simulator: the seed decides all, the dead do nothing, a standstill is a failure, nothing is left behind."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq.testing import DeadlockError, OvertimeError, SimNode, Simulation, SpinError, run_seed

ROOT = Path(__file__).parents[2]
PINGS = 20


async def chatter(simulation: Simulation) -> list[tuple[str, int, int]]:
    """Two nodes with tasks that race, sleep, use disk and threads; returns who did what in which order."""
    seen: list[tuple[str, int, int]] = []

    async def worker(node: SimNode, number: int) -> None:
        rng = node.env.entropy.generator()
        file = node.env.disk.open(f"/{number}", create=True)
        for step in range(PINGS):
            seen.append((node.name, number, step))
            if rng.random() < 0.3:
                await trio.sleep(rng.random())
            elif rng.random() < 0.5:
                await trio.lowlevel.checkpoint()
            else:
                await node.env.threads.run(file.write_at, step, [b"x"])
                await node.env.threads.run(file.sync)

    async def main(node: SimNode) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(worker, node, number)

    for name in ("a", "b"):
        node = simulation.node(name)
        node.spawn(main, node)
    await trio.sleep(0.5)
    simulation.node("a").power_off()
    await trio.sleep(simulation.duration_s)
    return seen


def trace_of(seed: int) -> int:
    return run_seed(seed, chatter).check().trace


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again, other = (run_seed(seed, chatter).check() for seed in (1, 1, 2))
    assert (first.trace, first.value, first.counters) == (again.trace, again.value, again.counters)
    assert first.trace != other.trace
    assert first.value != other.value
    assert first.simulated_s == 60.5


@pytest.mark.slow
def test_the_trace_is_the_same_in_other_processes_with_other_hash_seeds() -> None:
    code = "from tests.testing.test_simulation import trace_of; print([trace_of(s) for s in range(5)])"
    outputs = set()
    for hash_seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
        )
        outputs.add(run.stdout)
    assert outputs == {f"{[trace_of(seed) for seed in range(5)]}\n"}


def test_no_finally_and_no_except_of_a_killed_node_runs_before_the_verdict() -> None:
    events: list[str] = []

    async def victim() -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                while True:
                    await trio.sleep(0.1)
                    events.append("step")
        except BaseException:
            events.append("except")
            raise
        finally:
            events.append("finally")

    async def main(simulation: Simulation) -> list[str]:
        node = simulation.node("n")
        node.spawn(victim)
        await trio.sleep(1.05)
        node.kill()
        await trio.sleep(10)
        return list(events)

    result = run_seed(3, main).check()
    assert result.value == ["step"] * 10
    assert result.counters["node.kill"] == 1
    assert events == ["step"] * 10 + ["except", "finally"], "the tasks were not cleared away after the verdict"
    assert not result.abandoned


def test_a_killed_node_takes_no_step_even_if_it_was_chosen_for_this_turn() -> None:
    async def main(simulation: Simulation) -> None:
        node = simulation.node("n")
        late: list[int] = []

        async def victim() -> None:
            while True:
                await trio.sleep(1)
                late.append(node.life.dead)

        for _ in range(5):
            node.spawn(victim)
        await trio.sleep(3)
        node.kill()
        await trio.sleep(3)
        assert not any(late)

    for seed in range(20):
        run_seed(seed, main).check()


def test_a_killed_node_runs_on_under_the_same_name_with_its_page_cache() -> None:
    async def main(simulation: Simulation) -> bytes:
        node = simulation.node("n")
        first = node.env
        file = first.disk.open("/f", create=True)
        assert file.lock()
        file.write_at(0, [b"old life"])
        node.kill()
        with pytest.raises(OSError, match="dead"):
            file.write_at(0, [b"never"])
        second = node.start()
        file = second.disk.open("/f")
        assert file.lock()
        assert second.disk is not first.disk
        assert second.entropy.token(8) != simulation.swarm.rng("n/1/entropy").randbytes(8)
        return file.read_at(0, 100)

    assert run_seed(0, main).check().value == b"old life"


def test_a_paused_node_stands_still_and_goes_on_where_it_was() -> None:
    async def main(simulation: Simulation) -> list[float]:
        node = simulation.node("n")
        times: list[float] = []

        async def ticker() -> None:
            for _ in range(10):
                await trio.sleep(1)
                times.append(trio.current_time())

        node.spawn(ticker)
        await trio.sleep(3.5)
        node.pause()
        node.pause()
        assert node.state == "paused"
        await trio.sleep(10)
        node.resume()
        await trio.sleep(20)
        return times

    times = run_seed(0, main).check().value
    assert times[:3] == [1, 2, 3]
    assert times[3] == 13.5
    assert times[4:] == [14.5 + step for step in range(6)]


def test_a_paused_node_can_be_killed_and_never_wakes() -> None:
    async def main(simulation: Simulation) -> None:
        node = simulation.node("n")
        steps: list[int] = []

        async def ticker() -> None:
            while True:
                await trio.sleep(1)
                steps.append(1)

        node.spawn(ticker)
        await trio.sleep(1.5)
        node.pause()
        await trio.sleep(1)
        node.kill()
        node.resume()
        await trio.sleep(5)
        assert steps == [1]

    run_seed(0, main).check()


def test_the_deadlines_of_a_living_node_fire_while_all_others_are_held() -> None:
    async def main(simulation: Simulation) -> list[str]:
        held, free, seen = simulation.node("held"), simulation.node("free"), []

        async def busy() -> None:
            while True:
                await trio.lowlevel.checkpoint()

        async def waiter() -> None:
            with trio.move_on_after(5):
                await trio.sleep_forever()
            seen.append("fired")

        held.spawn(busy)
        free.spawn(waiter)
        await trio.lowlevel.checkpoint()
        held.pause()
        await trio.sleep(6)
        return seen

    assert run_seed(0, main).check().value == ["fired"]


def test_a_fuse_cuts_the_power_inside_a_call_that_never_returns() -> None:
    returned: list[int] = []

    async def main(simulation: Simulation) -> tuple[int, dict[str, int]]:
        node = simulation.node("n")

        async def writer() -> None:
            try:
                file = node.env.disk.open("/f", create=True)
                for number in range(100):
                    await node.env.threads.run(file.write_at, number, [b"x"])
                    returned.append(number)
            finally:
                returned.append(-1)

        node.fuse(11)
        node.spawn(writer)
        await trio.sleep(30)
        assert node.state == "dead"
        return len(returned), simulation.counters()

    value, counters = run_seed(5, main).check().value
    assert value == 9
    assert counters["disk.fuse"] == counters["disk.power_loss"] == counters["node.power_off"] == 1


def test_a_task_that_fails_makes_the_simulation_fail_with_its_error() -> None:
    async def broken() -> None:
        await trio.sleep(2)
        raise ValueError("a defect")

    async def main(simulation: Simulation) -> None:
        simulation.node("n").spawn(broken)
        await trio.sleep(60)

    result = run_seed(0, main)
    assert isinstance(result.failure, ValueError)
    assert result.simulated_s == 2
    with pytest.raises(ValueError, match="a defect"):
        result.check()


def test_of_several_failures_the_first_counts() -> None:
    async def broken(after_s: float) -> None:
        await trio.sleep(after_s)
        raise ValueError(f"after {after_s}")

    async def main(simulation: Simulation) -> None:
        for after_s in (3, 2, 4):
            simulation.node("n").spawn(broken, after_s)
        try:
            await trio.sleep(60)
        finally:
            simulation.fail(ValueError("too late"))

    assert str(run_seed(0, main).failure) == "after 2"


def test_a_deadlock_is_a_failure_with_the_stack_of_every_task() -> None:
    async def stuck_for_ever() -> None:
        await trio.sleep_forever()

    async def main(simulation: Simulation) -> None:
        simulation.node("n").spawn(stuck_for_ever)
        await trio.Event().wait()

    result = run_seed(0, main)
    assert isinstance(result.failure, DeadlockError)
    assert "stuck_for_ever of n/1" in str(result.failure)
    assert "test_a_deadlock_is_a_failure" in str(result.failure)
    assert not result.abandoned


def test_a_spin_at_one_instant_is_a_failure_with_the_stack_of_every_task() -> None:
    async def spinner() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def main(simulation: Simulation) -> None:
        simulation.node("n").spawn(spinner)
        await trio.sleep(5)

    result = run_seed(0, main)
    assert isinstance(result.failure, SpinError)
    assert "spinner of n/1" in str(result.failure)
    assert not result.abandoned


def test_a_main_task_that_is_not_done_in_time_is_a_failure() -> None:
    async def main(simulation: Simulation) -> None:
        for _ in range(1000):
            await trio.sleep(1)

    result = run_seed(0, main, limit_s=100)
    assert isinstance(result.failure, OvertimeError)
    assert result.simulated_s == 100


def test_tasks_that_refuse_to_end_are_abandoned_without_a_word(capfd: Any) -> None:
    async def stubborn() -> None:
        try:
            while True:
                with trio.CancelScope(shield=True):
                    await trio.sleep_forever()
        finally:
            await trio.sleep(1)

    async def main(simulation: Simulation) -> str:
        simulation.node("n").spawn(stubborn)
        await trio.sleep(1)
        return "verdict"

    result = run_seed(0, main).check()
    assert result.value == "verdict"
    assert result.abandoned
    assert capfd.readouterr() == ("", "")
    assert run_seed(0, main).check().trace == result.trace


def test_the_dead_log_nothing_when_they_are_cleared_away(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("meshq.test")

    async def talker() -> None:
        try:
            log.warning("alive")
            await trio.sleep_forever()
        finally:
            log.error("the last words of the dead")

    async def main(simulation: Simulation) -> None:
        simulation.node("n").spawn(talker)
        await trio.sleep(1)
        simulation.node("n").kill()

    run_seed(0, main).check()
    log.warning("afterwards")
    assert [record.message for record in caplog.records] == ["alive", "afterwards"]


def test_an_inline_call_moves_the_clock_and_a_call_in_a_thread_lets_others_run() -> None:
    async def main(simulation: Simulation) -> tuple[float, float]:
        node = simulation.node("n")
        node.disk.latency = lambda call, size: 0.5 if call == "sync" else 0.0
        file = node.env.disk.open("/f", create=True)
        assert file.sync() == 0.5
        inline = trio.current_time()
        with trio.move_on_after(0.25):
            await node.env.threads.run(file.sync)
        return inline, trio.current_time()

    inline, threaded = run_seed(0, main).check().value
    assert inline == 0.5
    assert 1.0 <= threaded < 1.01


def test_a_cancelled_call_in_a_thread_is_waited_for_and_its_result_is_lost() -> None:
    async def main(simulation: Simulation) -> list[str]:
        node, seen = simulation.node("n"), []
        with trio.CancelScope() as scope:
            scope.cancel()
            await node.env.threads.run(seen.append, "cancelled before: not called")
        with trio.CancelScope() as scope:
            await node.env.threads.run(lambda: (seen.append("called"), scope.cancel()))
            seen.append("result seen")
        return seen

    assert run_seed(0, main).check().value == ["called"]


def test_calls_of_the_journal_pool_come_one_after_the_other() -> None:
    async def main(simulation: Simulation) -> list[int]:
        node, order = simulation.node("n"), []
        node.env.threads.wait_s_max = 1.0  # type: ignore[attr-defined]

        async def call(number: int) -> None:
            await trio.sleep(number * 0.001)
            await node.env.threads.run(order.append, number, pool="journal")

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(call, number)
        return order

    assert run_seed(1, main).check().value == list(range(20))


def test_a_password_is_hashed_once_in_a_simulation_and_each_time_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def slow(*arguments: Any) -> bytes:
        asked.append(arguments)
        return b"hash of %b" % arguments[1]

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", slow)

    async def main(simulation: Simulation) -> list[bytes]:
        return [hashlib.pbkdf2_hmac("sha256", password, b"salt", 4_096) for password in (b"a", b"b", b"a")]

    for seed in range(2):
        assert run_seed(seed, main).check().value == [b"hash of a", b"hash of b", b"hash of a"]
        assert [password for _, password, *_ in asked] == [b"a", b"b"] * (seed + 1)
    hashlib.pbkdf2_hmac("sha256", b"a", b"salt", 4_096)
    assert len(asked) == 5


def test_swarm_switches_differ_by_seed_and_do_not_depend_on_the_order_of_asking() -> None:
    kinds = [f"kind{number}" for number in range(8)]
    patterns = set()
    for seed in range(20):
        one, other = Simulation(seed).swarm, Simulation(seed).swarm
        pattern = tuple(one.on(kind) for kind in kinds)
        assert pattern == tuple(reversed([other.on(kind) for kind in reversed(kinds)]))
        patterns.add(pattern)
    assert len(patterns) > 15


def test_a_failpoint_is_counted_also_when_it_never_strikes() -> None:
    hits = []
    for seed in range(30):
        swarm = Simulation(seed).swarm
        taken = sum(swarm.failpoint("shrink") for _ in range(1000))
        assert swarm.counters == {"chaos.shrink": taken}
        hits.append(taken)
    assert 0 in hits
    assert max(hits) > 400
    forced = Simulation(1).swarm
    forced.force("chaos.shrink", False)
    assert not any(forced.failpoint("shrink") for _ in range(1000))


def test_fifty_runs_leave_neither_memory_nor_threads_nor_descriptors() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def memory_kib() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

    for seed in range(10):
        trace_of(seed)
    files, threads, memory = descriptors(), set(threading.enumerate()), memory_kib()
    for seed in range(50):
        trace_of(seed)
    assert descriptors() == files
    # An idle thread of another test may have ended meanwhile.
    assert set(threading.enumerate()) <= threads
    assert memory_kib() - memory < 2048
