"""A backlog far beyond memory outlives its broker, and is drained whole and in order with little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import checkout_environment

MESSAGES = 100_000
#: A twelfth of what the bodies alone take.
MEMORY_MIB = 1
#: What an interpreter with a broker takes, with much to spare, and far less than a second copy of everything.
PROCESS_MIB_MAX = 96


@pytest.mark.processes
@pytest.mark.real
def test_a_backlog_beyond_memory_comes_back_whole_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-m", "qa.backlog", "--messages", str(MESSAGES)]
    command += ["--memory-mib", str(MEMORY_MIB), "--directory", str(tmp_path / "here"), "--result", "backlog"]
    done = subprocess.run(
        command, cwd=tmp_path, env=checkout_environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "docs" / "results" / "backlog.json").read_text())["backlog"]
    assert found["messages"] == MESSAGES and found["paged_messages"] > MESSAGES * 0.9
    assert found["disk_mib"] > MESSAGES * 100 / (1 << 20)
    assert max(found["first_life_peak_mib"], found["second_life_peak_mib"]) < PROCESS_MIB_MAX
    assert list((tmp_path / "here").iterdir()) == []
