"""Recovery is tried once, twice and with a crash at each of its steps; whoever depends on luck is caught."""

from __future__ import annotations

import attrs
import pytest
import trio

from meshq.abc import Env
from meshq.broker import Core
from meshq.node import Broker
from meshq.store import JournalRecord
from meshq.testing import SimDisk, Simulation, run_seed
from meshq.testing.history._history import History, body_of
from qa.checkers.end import violations_of
from qa.simulation import accounts
from qa.simulation.broker import DIRECTORY
from qa.simulation.recovery import Recover, record_recoveries
from tests.node.lives import machine


def torn_log() -> SimDisk:
    """Ten durable bytes of which the last three were never confirmed."""
    disk = SimDisk()
    file = disk.open("/log", create=True)
    file.write_at(0, [b"goodgooxxx"])
    file.sync()
    disk.sync_directory("/")
    return disk


async def seal(env: Env) -> str:
    """Copy what is good to a new file and put it in the old one's place: one step that counts."""
    await trio.lowlevel.checkpoint()
    disk = env.disk
    for leftover in set(disk.names("/")) - {"log"}:
        disk.remove(f"/{leftover}")
    good = disk.open("/log").read_at(0, 100).rstrip(b"x")
    copy = disk.open("/copy", create=True)
    copy.write_at(0, [good])
    copy.sync()
    disk.replace("/copy", "/log")
    disk.sync_directory("/")
    return good.decode()


async def seal_carelessly(env: Env) -> str:
    """The same without syncing the copy: right unless the power goes."""
    await trio.lowlevel.checkpoint()
    disk = env.disk
    for leftover in set(disk.names("/")) - {"log"}:
        disk.remove(f"/{leftover}")
    good = disk.open("/log").read_at(0, 100).rstrip(b"x")
    disk.open("/copy", create=True).write_at(0, [good])
    disk.replace("/copy", "/log")
    disk.sync_directory("/")
    return good.decode()


async def add_something(env: Env) -> str:
    """Not idempotent: each recovery leaves a trace."""
    await trio.lowlevel.checkpoint()
    file = env.disk.open("/log")
    file.write_at(file.size(), [b"!"])
    file.sync()
    return file.read_at(0, 100).decode()


def ways_of(recover: Recover, *, images: bool = False) -> tuple[int, History]:
    history, disk = History(float), torn_log()

    async def main(simulation: Simulation) -> int:
        return await record_recoveries(simulation, history, "torn log", disk, recover, images=images)

    ways = run_seed(0, main).check().value
    assert disk.content("/log") == b"goodgooxxx"
    assert ways == len(history.final.recoveries)
    return ways, history


@pytest.mark.parametrize("images", [False, True])
def test_a_sound_recovery_is_a_fixed_point(images: bool) -> None:
    ways, history = ways_of(seal, images=images)
    # Eight disk calls, a crash after each by kill and by power loss, and both without a crash.
    assert ways >= 2 + 8 + 8
    assert {recovery.state for recovery in history.final.recoveries} == {"goodgoo"}
    assert violations_of(history, ["Q15"]) == []


def test_a_recovery_that_needs_luck_is_caught() -> None:
    assert violations_of(ways_of(seal_carelessly, images=True)[1], ["Q15"])


def test_a_recovery_that_changes_what_it_finds_is_caught() -> None:
    found = violations_of(ways_of(add_something)[1], ["Q15"])
    assert str(found[0]) == "Q15: torn log recovered to 'goodgooxxx!!' twice, to 'goodgooxxx!' once"


def test_an_error_of_recovery_fails_the_simulation() -> None:
    async def broken(env: Env) -> str:
        await trio.lowlevel.checkpoint()
        env.disk.names("/")
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        ways_of(broken)


def test_a_crashed_recovery_does_not_unwind() -> None:
    unwound: list[str] = []

    async def watched(env: Env) -> None:
        try:
            await env.threads.run(env.disk.names, "/")
            await env.threads.run(env.disk.names, "/")
        except BaseException:
            unwound.append("except")
            raise

    async def main(simulation: Simulation) -> int:
        ways = await record_recoveries(simulation, History(float), "x", SimDisk(), watched)
        assert unwound == []
        return ways

    assert run_seed(0, main).check().value == 2 + 2 + 2


async def test_equal_records_make_two_cores_to_compare_and_others_make_a_core_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counted(records: list[JournalRecord], env: Env) -> tuple[Core, dict[bytes, int]]:
        made.append(len(records))
        return core_of(records, env)

    core_of = accounts._core_of
    monkeypatch.setattr(accounts, "_core_of", counted)
    disk, recount = SimDisk(), accounts.Recount()
    for sent in (1, 2):
        async with (
            Broker("hq", data_dir=DIRECTORY, env=attrs.evolve(machine(), disk=disk)) as broker,
            broker.client() as client,
        ):
            await client.create_queue("q")
            await client.send("q", body_of(sent))
        found = [await recount(attrs.evolve(machine(), disk=disk.copy())) for _ in range(4)]
        assert [uid for uid, _ in found[0]["queues"]["q"][0]] == [*range(1, sent + 1)]
        assert found == [found[0]] * 4
        assert len(made) == 2 * sent
