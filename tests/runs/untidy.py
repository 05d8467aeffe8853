"""Tests that leave something: another test looks at what becomes of it.  Not collected unless named."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

pytestmark = pytest.mark.real
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
#: Kept, so that nobody warns of them.
LEFT: list[subprocess.Popen[bytes]] = []


def test_that_leaves_a_process() -> None:
    LEFT.append(subprocess.Popen(SLEEP))


def test_that_leaves_a_folder() -> None:
    tempfile.mkdtemp(prefix="untidy-")


def test_that_fails_and_leaves_both() -> None:
    LEFT.append(subprocess.Popen(SLEEP))
    tempfile.mkdtemp(prefix="untidy-")
    raise AssertionError("meant to be seen")


def test_that_leaves_nothing() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
