"""Tests with processes and files that never end: another test kills their run.  Not collected unless named."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from qa.broker_process import BrokerProcess

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.parametrize("name", ["first", "second"])
def test_that_never_ends(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1_000))
    tempfile.mkdtemp(prefix="never-ending-")
    broker = BrokerProcess(str(tmp_path / "store"))
    assert "tcp://" in broker.next_report()
    with subprocess.Popen(SLEEP), subprocess.Popen(SLEEP, start_new_session=True):
        (Path(os.environ["STARTED"]) / name).touch()
        threading.Event().wait()
