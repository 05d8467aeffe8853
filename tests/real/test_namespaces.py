"""Nodes on machines of their own, as far as the network goes: real multicast, real TCP, and cables that are pulled."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 150


@pytest.mark.processes
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_nodes_in_namespaces_find_each_other_and_lose_nothing_by_a_pulled_cable_or_a_node_that_leaves(
    tmp_path: Path,
) -> None:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("skipped: iproute2 or util-linux is not installed")
    inside = ["unshare", "-Urn"]
    probe = subprocess.run([*inside, "ip", "link", "add", "probe", "type", "bridge"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"skipped: no right to network namespaces or bridges: {probe.stderr.strip()}")
    done = subprocess.run(
        [*inside, sys.executable, "-m", "tests.real.laboratory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["before"] == list(range(50))
    assert found["after"] == list(range(100)), "each once"
    assert found["moved"] == len(found["left"])
    assert found["left"] == list(range(100, 130))
