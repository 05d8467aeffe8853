"""``.ci/run`` runs every tier once, counts all runs together, and ends its own processes."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from tools import ci, tiers_gate

from tests import tiers
from tests.sweeper import PROC, read
from tests.tiers import SHORT, TIERS

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tools" / "ci.py"
XML = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}"/></testsuites>'


@pytest.mark.parametrize("shell", [(), ("sh",), ("bash",)], ids=lambda shell: "".join(shell) or "itself")
@pytest.mark.parametrize("folder", [ROOT, Path("/")], ids=["here", "elsewhere"])
def test_the_command_runs_whichever_shell_it_is_given_to(shell: tuple[str, ...], folder: Path) -> None:
    script = ROOT / ".ci" / "run"
    script = script if folder != ROOT else script.relative_to(ROOT)
    environment = {"PYTHON": "echo", "PATH": "/usr/bin:/bin"}
    output = subprocess.run([*shell, script], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert (folder / output.stdout.strip()).resolve() == RUN
    assert output.stderr == ""


def test_every_tier_is_run_once_and_is_in_the_table_of_tiers() -> None:
    steps = (*ci.ONE_CORE, *ci.WAITING)
    assert sorted({step.tier for step in steps}) == sorted(TIERS)
    assert len({step.name for step in steps}) == len(steps)
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M)
    assert sorted(table) == sorted([SHORT, *TIERS])
    (listed,) = re.findall(r"^TIERS = (\[.*\])$", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.M)
    assert sorted(ast.literal_eval(listed)) == sorted(TIERS)
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert {line.partition(":")[0] for line in markers["markers"]} >= {SHORT, *TIERS}


@pytest.mark.rules
def test_every_test_of_a_tier_lies_where_the_tier_is_looked_for() -> None:
    for tier in TIERS:
        found = Counter(file for step in (*ci.ONE_CORE, *ci.WAITING) if step.tier == tier for file in ci.files_of(step))
        assert set(found.values()) == {1}, [file for file, times in found.items() if times > 1]
        for path in (ROOT / "tests").rglob("test_*.py"):
            if re.search(rf"^ *@?(?:pytestmark = )?\[?pytest\.mark\.{tier}\b", path.read_text(encoding="utf-8"), re.M):
                assert str(path.relative_to(ROOT)) in found, (tier, path)


def test_a_tier_that_does_not_stand_in_the_file_of_its_test_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test_some.py"
    item: Any = SimpleNamespace(nodeid="test_some.py::test", path=path, get_closest_marker={"slow": "the mark"}.get)
    for text, said in (("pytestmark = kit.MARKS", False), ("pytestmark = pytest.mark.slow", True)):
        path.write_text(text, encoding="utf-8")
        tiers._text.cache_clear()
        with nullcontext() if said else pytest.raises(pytest.UsageError, match="slow, and its file does not say so"):
            tiers.pytest_collection_modifyitems([item])
    assert "tests/wire/test_run.py" in ci.files_of(ci.Tests("slow", "slow", "tests"))
    assert ci.files_of(ci.Tests("slow", "slow", "tests/tidy")) == []


def test_the_tests_of_all_runs_are_counted_together(tmp_path: Path) -> None:
    reports = [tmp_path / "a.xml", tmp_path / "b.xml"]
    reports[0].write_text(XML.format(10, 1, 2, 3), encoding="utf-8")
    reports[1].write_text(XML.format(5, 0, 0, 1), encoding="utf-8")
    assert ci.count(reports) == "8 passed, 3 failed, 4 skipped"


def test_the_readmes_commands_are_found_as_they_stand_there() -> None:
    assert ci.from_readme("pytest") == "pip install -e '.[test]' && python -m pytest"
    assert ci.from_readme("meshq demo") == "pip install '.[demo]' && python -m meshq demo"


def test_a_test_that_is_too_long_for_the_short_tier_is_named(tmp_path: Path) -> None:
    case = (
        '<testcase file="{0}" name="t"><properties><property name="processor_s" value="{1}"/></properties></testcase>'
    )
    report = tmp_path / "r.xml"
    cases = "".join(case.format(name, value) for name, value in (("a.py", 0.4), ("b.py", 0.6), ("c.py", 1.1)))
    report.write_text(f"<testsuite>{cases}</testsuite>", encoding="utf-8")
    assert tiers_gate.long_tests(report) == [(1.1, "c.py::t"), (0.6, "b.py::t")]


@pytest.mark.slow
def test_a_test_that_was_long_among_the_others_is_measured_alone(tmp_path: Path) -> None:
    here = Path(__file__).relative_to(ROOT)
    short, other = f"{here}::{test_the_tests_of_all_runs_are_counted_together.__name__}", "../made/by/a/library.py::t"
    assert tiers_gate.alone([short, other], tmp_path / "r.xml") == []
    (case,) = ElementTree.parse(tmp_path / "r.xml").iter("testcase")
    assert case.get("name") == test_the_tests_of_all_runs_are_counted_together.__name__
    assert tiers_gate.alone([other], tmp_path / "none.xml") == []


@pytest.mark.real
def test_what_one_step_has_compiled_the_next_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "log").mkdir()
    (tmp_path / "imported.py").write_text("", encoding="utf-8")
    steps = ci.Steps(tmp_path)
    assert steps.run("one", sys.executable, "-c", "import imported", cwd=tmp_path)
    assert list(tmp_path.rglob("imported.*.pyc")) == list((tmp_path / "compiled").rglob("imported.*.pyc")) != []


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_processes_and_removes_its_folder(number: signal.Signals, tmp_path: Path) -> None:
    code = f"""
import runpy, threading
run = runpy.run_path({str(RUN)!r})
def work(steps):
    threading.Thread(target=steps.run, args=("other", "sleep", "600")).start()
    steps.run("step", "bash", "-c", "touch {tmp_path}/begun; sleep 600 & sleep 600")
run["carry_out"](work)
"""
    environment = {"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "MESHQ_SUBMISSION": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    mark = f"MESHQ_SUBMISSION={tmp_path}".encode()
    deadline = time.monotonic() + 10
    while [path for path in PROC.glob("[0-9]*") if mark in read(path / "environ")]:
        assert time.monotonic() < deadline
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]
