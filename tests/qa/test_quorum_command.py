"""The command that runs schedules of a quorum goes on where it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qa.quorum.__main__ import main


def test_a_run_is_written_down_and_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/results").mkdir(parents=True)
    assert main(["--schedules", "3", "--result", "q"]) == 0
    assert main(["--schedules", "5", "--result", "q", "--resume"]) == 0
    assert main(["--schedules", "1", "--first", "9", "--result", "q", "--resume"]) == 0
    run, other = json.loads((tmp_path / "docs/results/q.json").read_text(encoding="utf-8"))["runs"]
    assert (other["first"], other["schedules"]) == (9, 1), "other schedules are another run"
    assert run["command"] == "python -m qa.quorum --first 0 --schedules 5"
    assert (run["first"], run["schedules"], run["failed"]) == (0, 5, [])
    assert len(run["commits"]) == 1
    assert run["counts"]["locks"]
    assert "5 schedules, 0 failed" in capsys.readouterr().out
