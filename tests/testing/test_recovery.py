"""Recovery is tried once, twice and with a crash at each of its steps; whoever depends on luck is caught."""

from __future__ import annotations

import pytest
import trio

from meshq.abc import Disk
from meshq.testing import SimDisk
from meshq.testing._checkers_end import violations_of
from meshq.testing._history import History
from meshq.testing._recovery import record_recoveries


def torn_log() -> SimDisk:
    """Ten durable bytes of which the last three were never confirmed."""
    disk = SimDisk()
    file = disk.open("/log", create=True)
    file.write_at(0, [b"goodgooxxx"])
    file.sync()
    disk.sync_directory("/")
    return disk


async def seal(disk: Disk) -> str:
    """Copy what is good to a new file and put it in the old one's place: one step that counts."""
    await trio.lowlevel.checkpoint()
    for leftover in set(disk.names("/")) - {"log"}:
        disk.remove(f"/{leftover}")
    good = disk.open("/log").read_at(0, 100).rstrip(b"x")
    copy = disk.open("/copy", create=True)
    copy.write_at(0, [good])
    copy.sync()
    disk.replace("/copy", "/log")
    disk.sync_directory("/")
    return good.decode()


async def seal_carelessly(disk: Disk) -> str:
    """The same without syncing the copy: right unless the power goes."""
    await trio.lowlevel.checkpoint()
    for leftover in set(disk.names("/")) - {"log"}:
        disk.remove(f"/{leftover}")
    good = disk.open("/log").read_at(0, 100).rstrip(b"x")
    disk.open("/copy", create=True).write_at(0, [good])
    disk.replace("/copy", "/log")
    disk.sync_directory("/")
    return good.decode()


async def add_something(disk: Disk) -> str:
    """Not idempotent: each recovery leaves a trace."""
    await trio.lowlevel.checkpoint()
    file = disk.open("/log")
    file.write_at(file.size(), [b"!"])
    file.sync()
    return file.read_at(0, 100).decode()


@pytest.mark.parametrize("images", [False, True])
async def test_a_sound_recovery_is_a_fixed_point(images: bool) -> None:
    history, disk = History(trio.current_time), torn_log()
    ways = await record_recoveries(history, "torn log", disk, seal, images=images)
    assert ways == len(history.recoveries)
    # Eight disk calls, a crash after each by kill and by power loss, and both without a crash.
    assert ways >= 2 + 8 + 8
    assert {recovery.state for recovery in history.recoveries} == {"goodgoo"}
    assert violations_of(history, ["Q15"]) == []
    assert disk.content("/log") == b"goodgooxxx"


async def test_a_recovery_that_needs_luck_is_caught() -> None:
    history = History(trio.current_time)
    await record_recoveries(history, "torn log", torn_log(), seal_carelessly, images=True)
    assert violations_of(history, ["Q15"])


async def test_a_recovery_that_changes_what_it_finds_is_caught() -> None:
    history = History(trio.current_time)
    await record_recoveries(history, "torn log", torn_log(), add_something)
    found = violations_of(history, ["Q15"])
    assert str(found[0]) == "Q15: torn log recovered to 'goodgooxxx!!' twice, to 'goodgooxxx!' once"


async def test_an_error_that_no_crash_explains_comes_out() -> None:
    async def broken(disk: Disk) -> str:
        await trio.lowlevel.checkpoint()
        disk.names("/")
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        await record_recoveries(History(trio.current_time), "x", SimDisk(), broken)
