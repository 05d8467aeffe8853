"""The rows of what meshq promises are all there, are well formed, and name tests that exist."""

from __future__ import annotations

import functools
import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path
from typing import Any

import pytest
from tools import conformance as tool

from tests.tidy import conformance
from tests.tidy.sources import ROOT, Source, python_files, report

TEXT = tool.ROWS.read_text(encoding="utf-8")
DOCUMENT = tool.read(TEXT)
# One process reads the trees of all tests, and once is enough.
pytestmark = [pytest.mark.rules, pytest.mark.xdist_group("tidy")]


@functools.cache
def known_tests() -> Any:
    """What pytest would collect."""
    return conformance.node_ids(python_files("tests"))


def run_pytest(*arguments: str) -> str:
    """What a run of its own prints; nothing of how this run is measured and spread reaches it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MESHQ_COVERAGE"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def changed(identity: str, **keys: Any) -> dict[str, Any]:
    """The document with a row changed; ``None`` takes a key away."""
    rows = [{**row, **keys} if row["id"] == identity else row for row in DOCUMENT["row"]]
    return {**DOCUMENT, "row": [{key: value for key, value in row.items() if value is not None} for row in rows]}


def problems(document: dict[str, Any]) -> list[str]:
    """What is wrong with a document."""
    found = [
        *conformance.set_problems(TEXT, document),
        *conformance.row_problems(TEXT, document, known_tests()),
    ]
    return [problem.message for problem in found]


def test_every_required_row_is_there_once_and_in_its_place() -> None:
    assert len(conformance.required()) == 541
    assert not report(conformance.set_problems(TEXT, DOCUMENT))


def test_every_row_says_what_its_state_asks_for_and_names_tests_that_exist() -> None:
    assert not report(conformance.row_problems(TEXT, DOCUMENT, known_tests()))


def test_no_two_rows_have_one_rule() -> None:
    rules = [row["rule"] for row in DOCUMENT["row"]]
    assert len(set(rules)) == len(rules)


def test_the_page_is_not_stale() -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(DOCUMENT)


def test_the_tests_that_the_rows_are_held_against_are_those_that_pytest_collects() -> None:
    files = ["tests/test_address.py", "tests/broker/test_queue_model.py", "tests/wire/test_numbering.py"]
    answer = run_pytest("--collect-only", *files)
    collected = {re.sub(r"\[.*", "", line) for line in answer.splitlines() if "::" in line}
    assert collected == {name for name in known_tests() if name.split("::")[0] in files}


def test_a_row_that_is_missing_doubled_strange_or_out_of_place_is_found() -> None:
    rows = DOCUMENT["row"]
    assert problems({**DOCUMENT, "row": rows[1:]}) == ["A1 is there 0 times"]
    assert problems({**DOCUMENT, "row": [rows[0], *rows]}) == ["A1 is there 2 times"]
    assert problems({**DOCUMENT, "row": [rows[1], rows[0], *rows[2:]]}) == ["A2 is not in its place"]
    assert problems(changed("A1", id="A78"))[1].startswith("A78 is no required row")
    assert problems({**DOCUMENT, "rows": []}) == ["unknown key: rows"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"state": "almost"}, "A1: the state 'almost' is none of done, in part, to come, not ours"),
        ({"state": None}, "A1: the state None is none of done, in part, to come, not ours"),
        ({"state": "done"}, "A1: a row that is 'done' needs tests"),
        ({"state": "not ours"}, "A1: a row that is 'not ours' needs why"),
        (
            {"state": "in part", "tests": ["tests/test_address.py::test_a_routing_type_is_one_of_two"]},
            "A1: a row that is 'in part' needs rest",
        ),
        ({"state": "in part", "rest": "Comes with discovery."}, "A1: a row that is 'in part' needs tests"),
        (
            {
                "state": "in part",
                "tests": ["tests/test_address.py::test_a_routing_type_is_one_of_two"],
                "rest": "later",
            },
            "A1: rest is no sentence",
        ),
        ({"rest": "Comes with discovery."}, "A1: a row that is 'to come' has no rest"),
        (
            {"tests": ["tests/test_address.py::test_a_routing_type_is_one_of_two"]},
            "A1: a row that is 'to come' has no tests",
        ),
        ({"note": "x"}, "A1: a row that is 'to come' has no note"),
        ({"rule": None}, "A1: a row that is 'to come' needs rule"),
        ({"rule": "soon"}, "A1: rule is no sentence"),
        ({"state": "not ours", "why": ""}, "A1: why is no sentence"),
        ({"state": "done", "tests": []}, "A1: tests is no list of node ids"),
        ({"state": "done", "tests": "tests/test_address.py"}, "A1: tests is no list of node ids"),
        (
            {"state": "done", "tests": ["tests/test_address.py::test_x"]},
            "A1: there is no test tests/test_address.py::test_x",
        ),
    ],
)
def test_a_row_that_does_not_say_what_it_should_is_found(keys: dict[str, Any], message: str) -> None:
    assert problems(changed("A1", **{"state": "to come", "tests": None, "why": None, **keys})) == [message]


def test_tests_are_found_in_functions_classes_and_state_machines() -> None:
    code = """
def test_one(): ...
async def test_two(): ...
def helper(): ...
class TestThem:
    def test_three(self): ...
    def helper(self): ...
TestModel = Model.TestCase
"""
    found = conformance.node_ids(
        (Source.of("tests/test_x.py", code), Source.of("tests/kit.py", "def test_four(): ..."))
    )
    names = ("test_one", "test_two", "TestThem::test_three", "TestModel::runTest")
    assert found == {f"tests/test_x.py::{name}" for name in names}


XML = """<testsuites><testsuite>
<testcase classname="tests.a.test_b" name="test_good" file="tests/a/test_b.py"/>
<testcase classname="tests.a.test_b" name="test_some[1]" file="tests/a/test_b.py"/>
<testcase classname="tests.a.test_b" name="test_some[2]" file="tests/a/test_b.py"><failure/></testcase>
<testcase classname="tests.a.test_b" name="test_left_out" file="tests/a/test_b.py"><skipped/></testcase>
<testcase classname="tests.a.test_b.TestC" name="test_inner" file="tests/a/test_b.py"><properties/></testcase>
</testsuite></testsuites>"""


def test_a_row_is_shown_only_by_tests_that_ran_and_passed() -> None:
    names = ("test_good", "test_some", "test_left_out", "TestC::test_inner", "test_forgotten")
    document = {"row": [{"id": "A1", "tests": [f"tests/a/test_b.py::{name}" for name in names]}, {"id": "A2"}]}
    assert tool.not_shown(document, tool.results(tree.ElementTree(tree.fromstring(XML)))) == [
        "A1: tests/a/test_b.py::test_some failure, passed",
        "A1: tests/a/test_b.py::test_left_out skipped",
        "A1: tests/a/test_b.py::test_forgotten did not run",
    ]


def test_a_row_that_is_in_part_names_its_tests_and_what_is_to_come() -> None:
    row = {"id": "A1", "rule": "A | B.", "state": "in part", "tests": ["tests/a.py::test_b"], "rest": "The rest."}
    assert tool.line(row) == "| A1 | A \\| B. | in part | `tests/a.py::test_b`<br>To come: The rest. |"
    assert tool.not_shown({"row": [row]}, {}) == ["A1: tests/a.py::test_b did not run"]
    assert tool.counts("all", [row, {**row, "state": "done"}]) == "| all | 2 | 1 | 1 | 0 | 0 |"


def test_what_pytest_writes_about_a_run_can_be_read(tmp_path: Path) -> None:
    file = "tests/test_address.py"
    run_pytest(f"--junitxml={tmp_path / 'r.xml'}", file)
    written = io.BytesIO((tmp_path / "r.xml").read_bytes())
    assert tool.results(tree.parse(written)) == {
        name: {"passed"} for name in known_tests() if name.split("::")[0] == file
    }
