"""The run gives up when nothing gets ahead any more, and says what it was waiting for."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import trio

from meshq.demo import _report_format as report
from meshq.demo._director import STALL_SECONDS, Director, StalledError
from meshq.demo._options import Options
from meshq.demo._progress import Lines


class Somebody:
    """A process that only has a name."""

    name = "producer"


def director(nursery: trio.Nursery) -> Director:
    """A director without processes."""
    return Director(Options(), Path("f"), "d", nursery=nursery, view=Lines(io.StringIO()))


async def test_a_run_in_which_nothing_moves_ends_and_says_what_it_waited_for() -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery)
        began = trio.current_time()
        with pytest.raises(StalledError, match="nothing has moved for 60 s while waiting until the cows come home"):
            await run._until(lambda: False, "the cows come home")
        assert trio.current_time() - began == pytest.approx(STALL_SECONDS)


async def test_what_gets_ahead_slowly_is_waited_for() -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery)

        async def creep() -> None:
            for rows in range(1, 11):
                await trio.sleep(STALL_SECONDS * 0.9)
                run._heard(Somebody(), report.Progress(rows, rows))  # type: ignore[arg-type]

        nursery.start_soon(creep)
        began = trio.current_time()
        await run._until(lambda: run._progress.confirmed == 10, "all is confirmed")
        assert trio.current_time() - began == pytest.approx(STALL_SECONDS * 9)


async def test_idle_reports_do_not_keep_a_run_alive_that_gets_nowhere() -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery)

        async def idle() -> None:
            while True:
                await trio.sleep(0.25)
                run._heard(Somebody(), report.Idle())  # type: ignore[arg-type]

        nursery.start_soon(idle)
        with pytest.raises(StalledError):
            await run._until(lambda: False, "something comes")
        nursery.cancel_scope.cancel()
