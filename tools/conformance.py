"""What meshq promises and what shows it: the rows of ``docs/conformance.toml``.

``python tools/conformance.py draw`` draws ``docs/conformance.md``; a test compares the two.
``python tools/conformance.py gate RESULTS.xml...`` reads what the runs of all the tests have left there, and fails
unless every test that a row names ran and passed.  Whether the rows are well formed is asked by tests/tidy.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tomllib
import xml.etree.ElementTree as tree
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs" / "conformance.toml"
PAGE = ROOT / "docs" / "conformance.md"
STATES = ("done", "in part", "to come", "not ours")

#: A sentence to a line.
INTRODUCTION = """\
# What it promises

Every rule that meshq means to keep, one to a row, and how far it is.
A row is *done* when tests show the whole of it; they are named beside it, and each of them runs and passes in every
run of the tests.
A row is *in part* when one node and its client keep it, as the tests beside it show, and the rest comes with another
subject, which is named.
A row is *to come* as long as any other part of it is missing, and until then [What it does not do](not-yet.md) counts.
A row that is *not ours* says why.

Names are those of the [reference](reference.md), also where they are still to come; times are seconds and sizes bytes.
Options in camelCase are those of the ActiveMQ documentation, with its milliseconds.

This page is drawn by `python tools/conformance.py draw` from `docs/conformance.toml`.
A test fails when it is stale.
"""


def read(text: str | None = None) -> dict[str, Any]:
    """The rows and the titles of their sections."""
    return tomllib.loads(ROWS.read_text(encoding="utf-8") if text is None else text)


def section_of(identity: str) -> str:
    """``B10`` stands in section ``B``."""
    return identity.rstrip("0123456789")


def line(row: dict[str, Any]) -> str:
    """A row's line of its table."""
    shown = [f"`{test}`" for test in row.get("tests", ())]
    shown += [f"To come: {row['rest']}"] if "rest" in row else []
    cells = (row["id"], row["rule"], row["state"], "<br>".join(shown) or row.get("why", ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def counts(name: str, rows: list[dict[str, Any]]) -> str:
    """How many rows are in which state, as a line of a table."""
    found = Counter(row["state"] for row in rows)
    return f"| {name} | {len(rows)} | " + " | ".join(str(found[state]) for state in STATES) + " |"


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    rows = document["row"]
    sections = {
        f"{letter}. {title}": [row for row in rows if section_of(row["id"]) == letter]
        for letter, title in document["sections"].items()
    }
    parts = [
        INTRODUCTION,
        f"| section | rows | {' | '.join(STATES)} |\n" + "| --- " * (len(STATES) + 2) + "|",
        *[counts(name, of) for name, of in sections.items()],
        counts("all", rows),
    ]
    for name, of in sections.items():
        parts += [f"\n## {name}\n", "| row | rule | state | shown by |\n| --- | --- | --- | --- |", *map(line, of)]
    return "\n".join(parts) + "\n"


def results(*reports: tree.ElementTree[Any]) -> dict[str, set[str]]:
    """What became of each test: node ids without parameters, to the outcomes of all that ran under them."""
    found: dict[str, set[str]] = {}
    for case in itertools.chain.from_iterable(report.iter("testcase") for report in reports):
        file = case.get("file")
        if file is None:
            continue  # not a test of ours: the xunit1 family names the file of each
        classes = case.get("classname", "").split(".")[len(Path(file).parts) :]
        name = re.sub(r"\[.*", "", case.get("name", ""), flags=re.S)
        outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
        found.setdefault("::".join([file, *classes, name]), set()).update(outcomes or {"passed"})
    return found


def not_shown(document: dict[str, Any], found: dict[str, set[str]]) -> list[str]:
    """What keeps a row that is done, or in part, from being shown by this run."""
    return [
        f"{row['id']}: {test} " + ("did not run" if test not in found else ", ".join(sorted(found[test])))
        for row in document["row"]
        for test in row.get("tests", ())
        if found.get(test) != {"passed"}
    ]


def main() -> int:
    """Draw the page, or judge a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw", help="draw docs/conformance.md")
    gate = commands.add_parser("gate", help="whether every test that a row names ran and passed")
    gate.add_argument("results", type=Path, nargs="+", help="what pytest --junitxml has written, one file a run")
    arguments = parser.parse_args()
    document = read()
    if arguments.command == "draw":
        PAGE.write_text(page(document), encoding="utf-8")
        return 0
    problems = not_shown(document, results(*map(tree.parse, arguments.results)))
    states = Counter(row["state"] for row in document["row"])
    print(
        f"{states['done']} of {len(document['row'])} rows are done and {states['in part']} in part, "
        f"{len(problems)} tests of theirs did not pass"
    )
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
