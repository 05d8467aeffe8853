"""The page about reliability names tests that are there, and figures that were measured."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from tools import draw_reliability

from meshq.testing.history._end import CHECKERS, NODE_CHECKERS
from qa.fuzz.targets import TARGETS
from qa.mutants.units import UNITS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def results(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_each_failure_names_tests_that_are_there() -> None:
    failures = rows("Failures, and what becomes of them")
    assert len(failures) == 14
    for failure, _, shown_by in failures:
        named = re.findall(r"`(tests/[^`]+)::(test_\w+)`", shown_by)
        assert named, failure
        for path, test in named:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert test in found, f"{path} has no {test}"


def test_each_promise_that_is_checked_stands_there() -> None:
    assert [name for name, _ in rows("Promises")][:-1] == sorted(
        CHECKERS | NODE_CHECKERS, key=lambda name: int(name[1:])
    )


def test_the_figures_are_those_of_the_results() -> None:
    found = []
    for run in results("seeds")["runs"]:
        hours = f"{run['simulated_s'] / 3600:.1f}"
        figures = [f"{run['seeds']:,}", str(len(run["failed"])), hours]
        found.append([run["stage"], *figures, f"{run['confirmed_sends']:,}", f"{run['faults']:,}"])
    assert rows("What was run") == found
    bugs = [bug for name in ("seeded", "seeded-mesh", "seeded-roles") for bug in results(name)["bugs"].values()]
    caught = sum(bug["caught"] for bug in bugs)
    assert f"[{len(bugs)} bugs were seeded]" in PAGE and f"have found {caught} of them" in PAGE


def test_the_tables_of_fuzzing_and_of_mutants_are_those_of_the_last_results() -> None:
    assert draw_reliability.page(PAGE) == PAGE
    assert [row[0] for row in rows("Bytes that nobody of ours has written")] == list(TARGETS)
    assert len(rows("Tests that can fail")) == len(UNITS)
