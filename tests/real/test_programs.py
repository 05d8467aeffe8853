"""Programs of the host: they are run without a shell, their end is told, and a cancelled one is gone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from meshq.env import real_env


@pytest.mark.processes
async def test_a_program_is_run_and_its_end_is_told(tmp_path: Path) -> None:
    programs, mark = real_env().programs, tmp_path / "a b; $HOME"
    write = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read() + 'x'); print('noise')"
    assert await programs.run([sys.executable, "-c", write, str(mark)]) == 0
    assert mark.read_text() == "x"
    assert await programs.run([sys.executable, "-c", "raise SystemExit(3)"]) == 3
    with pytest.raises(OSError):
        await programs.run([str(tmp_path / "none")])


@pytest.mark.processes
async def test_a_program_whose_time_is_over_is_gone(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    slow = "import sys, time, pathlib as p; p.Path(sys.argv[1]).touch(); time.sleep(3); p.Path(sys.argv[2]).touch()"
    with trio.move_on_after(30) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(real_env().programs.run, [sys.executable, "-c", slow, str(begun), str(ended)])
            while not begun.exists():  # noqa: ASYNC110 - another process makes it
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    await trio.sleep(3.5)
    assert not ended.exists()
