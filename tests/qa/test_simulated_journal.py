"""The real journal on the simulated disk: whatever dies or fails, what it confirmed is there afterwards."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator

import pytest
import trio

from meshq.abc import Env
from meshq.errors import AddressFullError, BrokenError, JournalBrokenError
from meshq.store import Journal
from meshq.testing import MemorySink, SimDisk, SimNode, Simulation, run_seed
from meshq.testing.history._history import History
from qa.checkers.end import violations_of
from qa.simulation.recovery import record_recoveries

#: Besides the first ones, what ever failed.
SEEDS = (*range(7), 130)
FAULTS = 8
SEGMENT_BYTES = 65_536


class Ledger:
    """What the journal said it had done."""

    def __init__(self) -> None:
        self.appended = 0
        self.confirmed: set[bytes] = set()
        #: Of these a deletion has begun; of those it is confirmed.
        self.deleting: set[bytes] = set()
        self.deleted: set[bytes] = set()

    def check(self, found: set[bytes]) -> None:
        lost = self.confirmed - self.deleting - found
        assert not lost, f"{len(lost)} confirmed records are lost: {sorted(lost)[:3]}"
        back = self.deleted & found
        assert not back, f"{len(back)} deleted records are back: {sorted(back)[:3]}"


async def use(ledger: Ledger, env: Env, make_sink: Callable[[], MemorySink | None] = lambda: None) -> None:
    """One life: recover, check, then append and delete from several tasks until the disk fails, or the sink."""
    sink = make_sink()
    try:
        async with Journal("/data", env=env, segment_bytes=SEGMENT_BYTES, sink=sink) as journal:
            live = {bytes(record.payload): int(record.position) async for record in journal.replay()}
            ledger.check(set(live))
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(write, ledger, journal, env.entropy.generator(), live, sink)
                if sink is not None:
                    nursery.start_soon(lag, sink, env.entropy.generator())
    except* (JournalBrokenError, AddressFullError, OSError):
        # The disk failed and the journal said so.  Damage is another error, and is not forgiven.
        pass


async def lag(sink: MemorySink, rng: random.Random) -> None:
    """A partner who is now and then slow, and at last gone."""
    for _ in range(rng.randrange(1, 20)):
        sink.hold()
        try:
            await trio.sleep(rng.random())
        finally:
            sink.release()
        await trio.sleep(rng.random())
    sink.fail(BrokenError("the partner is gone"))


async def write(
    ledger: Ledger, journal: Journal, rng: random.Random, live: dict[bytes, int], sink: MemorySink | None
) -> None:
    while True:
        ledger.appended += 1
        payload = b"%d " % ledger.appended + bytes(rng.randrange(2_000))
        live[payload] = await journal.append(payload)
        assert sink is None or live[payload] <= sink.told, "confirmed, and the sink does not have it"
        ledger.confirmed.add(payload)
        if rng.random() < 0.8:
            victim = rng.choice(list(live))
            position = live.pop(victim)
            ledger.deleting.add(victim)
            await journal.delete(position)
            ledger.deleted.add(victim)
        await trio.sleep(rng.random() * 0.3)


async def break_things(simulation: Simulation, node: SimNode, ledger: Ledger) -> None:
    rng = simulation.swarm.rng("faults")
    node.disk.faults.short_write_rate = rng.choice((0.0, 0.1))
    for _ in range(FAULTS):
        kind = rng.choice(("power", "kill", "fuse", "fuse", "sync", "full", "pause"))
        if kind == "fuse":
            node.fuse(rng.randrange(1, 60), power=rng.random() < 0.7)
        elif kind == "sync":
            node.disk.faults.inject("sync", skip=rng.randrange(5))
        elif kind == "full":
            node.disk.faults.inject("write", errno.ENOSPC, skip=rng.randrange(5))
        elif kind == "pause":
            node.pause()
        await trio.sleep(5 * rng.random())
        node.disk.faults.clear()
        (node.kill if kind == "kill" else node.power_off)()
        node.start()
        node.spawn(use, ledger, node.env)


@pytest.mark.slow
def test_what_a_journal_confirmed_is_there_after_every_crash() -> None:
    async def main(simulation: Simulation) -> Ledger:
        ledger, node = Ledger(), simulation.node("n")
        node.spawn(use, ledger, node.env)
        await break_things(simulation, node, ledger)
        await trio.sleep(3)
        return ledger

    confirmed = deleted = 0
    for seed in SEEDS:
        result = run_seed(seed, main).check()
        assert not result.abandoned
        confirmed += len(result.value.confirmed)
        deleted += len(result.value.deleted)
    assert confirmed > 100 * len(SEEDS)
    assert deleted > 50 * len(SEEDS)


@pytest.mark.slow
def test_what_a_journal_with_a_sink_confirmed_is_in_the_sink_too_and_there_after_every_crash() -> None:
    async def main(simulation: Simulation) -> tuple[Ledger, list[MemorySink]]:
        ledger, node = Ledger(), simulation.node("n")
        sinks: list[MemorySink] = []

        def make_sink() -> MemorySink:
            sinks.append(MemorySink(delay=0.01))
            return sinks[-1]

        rng = simulation.swarm.rng("lives")
        for _ in range(FAULTS):
            node.spawn(use, ledger, node.env, make_sink)
            await trio.sleep(8 * rng.random())
            (node.kill if rng.random() < 0.5 else node.power_off)()
            node.start()
        return ledger, sinks

    confirmed = failed = 0
    for seed in SEEDS:
        result = run_seed(seed, main).check()
        assert not result.abandoned
        ledger, sinks = result.value
        assert ledger.confirmed <= {bytes(part) for sink in sinks for batch in sink.batches for part in batch.parts}
        confirmed += len(ledger.confirmed)
        failed += sum(sink.failed for sink in sinks)
    assert confirmed > 50 * len(SEEDS)
    assert failed


async def recover(env: Env) -> tuple[bytes, ...]:
    """The live records that a journal finds."""
    async with Journal("/data", env=env, segment_bytes=SEGMENT_BYTES) as journal:
        return tuple([bytes(record.payload) async for record in journal.replay()])


def broken_disks() -> Iterator[SimDisk]:
    """Disks as power losses left them in the middle of work."""

    async def main(simulation: Simulation) -> SimDisk:
        ledger, node = Ledger(), simulation.node("n")
        node.spawn(use, ledger, node.env)
        await trio.sleep(8)
        node.fuse(1, only=("write",))
        await trio.sleep(5)
        assert node.state == "dead"
        return node.disk.copy()

    for seed in range(1):
        yield run_seed(seed, main).check().value


@pytest.mark.slow
def test_recovering_a_journal_is_a_fixed_point_whatever_crashes_inside_it() -> None:
    history, ways = History(float), 0
    for number, disk in enumerate(broken_disks()):

        async def main(simulation: Simulation, disk: SimDisk = disk, number: int = number) -> int:
            return await record_recoveries(simulation, history, f"disk {number}", disk, recover)

        ways += run_seed(number, main).check().value
    assert violations_of(history, ["Q15"]) == []
    assert ways > 35
