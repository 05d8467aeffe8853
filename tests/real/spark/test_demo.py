"""The demo of Spark as a user runs it, with a tenth of the flights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.spark.kit import reads_streams

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), reads_streams]
#: A tenth of the flights.
ROWS = 33_677


@pytest.mark.timeout(320)
def test_the_demo_runs_with_a_tenth_of_the_flights_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "meshq", "demo", "--spark", "--rows", str(ROWS)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert found.returncode == 0, found.stderr + found.stdout
    first, second, _, last = found.stdout.splitlines()
    assert first.startswith("node-") and " killed after " in first
    assert second.startswith("query killed after ")
    assert last.startswith(f"{ROWS:,} flights, ")
    assert last.endswith(" alerts: each window as in the file, each alert once.")
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in _environment(path)]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
