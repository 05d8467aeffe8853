"""The demo of balancers: devices land on their brokers, and only those of a dead broker land elsewhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meshq import SettingsError
from meshq.demo._balanced import DEVICES, KILLED, Spread, parse_devices, table

BEFORE = {"d1": "target-1", "d2": KILLED, "d3": "target-3"}


def test_only_the_devices_of_the_dead_broker_may_move() -> None:
    good = Spread(before=BEFORE, after={**BEFORE, "d2": "target-3"})
    assert (good.moved, good.differences) == (["d2"], [])
    assert table(good).endswith("1 of 3 devices have moved: those of target-2, and no others.")
    names = [line.split()[0] for line in table(good).splitlines()[1:-1]]
    assert names == ["target-1", "target-2", "target-3", "target-4"]
    needless = Spread(before=BEFORE, after={**BEFORE, "d1": "target-3", "d2": "target-3"})
    assert needless.differences == ["1 devices moved without need, or did not and had to"]
    assert table(needless).endswith(needless.differences[0])
    stays = Spread(before=BEFORE, after=BEFORE)
    assert len(stays.differences) == 2 and stays.differences[1] == "devices are at target-2, which is gone"


def test_a_number_of_devices_may_be_said() -> None:
    assert parse_devices(["--balancer"]) == DEVICES == 2_000
    assert parse_devices(["--balancer", "--devices", "7"]) == 7
    with pytest.raises(SettingsError, match="1 to 100,000"):
        parse_devices(["--balancer", "--devices", "0"])


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_the_demo_of_balancers_runs_and_leaves_no_process() -> None:
    command = [sys.executable, "-m", "meshq", "demo", "--balancer", "--devices", "40"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "those of target-2, and no others" in found.stdout and "killed" in found.stdout
