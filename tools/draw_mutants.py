"""Draw the page of mutants from the last results: ``python -m tools.draw_mutants``.

``python -m qa.mutants --result mutants --resume`` makes the results; a test compares the page with them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qa.mutants.units import UNITS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "mutants.md"
RESULTS = ROOT / "docs" / "results" / "mutants.json"

#: A sentence to a line.
INTRODUCTION = (
    "# Mutants",
    "",
    "A test that can't fail shows nothing.",
    "So small changes are made in copies of the product, one each, such as a mistyped operator:",
    "a comparison is turned round or moved by one, a number is one larger, a call is left out.",
    "The short tests of the unit that run the changed line have to notice it: one of them fails, or does not end.",
    "The changes are drawn by a seed, at the same chance for every place where one can be made.",
    "",
    "`python -m qa.mutants --result mutants --resume` does it again, and goes on where it was broken off;",
    "it keeps what it knows of files that have not changed.",
    "The commit of a unit is the oldest one at which one of its mutants was played.",
    "`--survivors` plays those anew that no test has noticed, `--number N` draws more.",
    "Below is each mutant that no test has noticed, and the reason: nobody can tell it from the product.",
    "",
    "This page is drawn by `python -m tools.draw_mutants` from `docs/results/mutants.json`;",
    "the reasons stand in `qa/mutants/reasons.toml`.",
    "A test fails when it is stale.",
    "",
)


def read() -> dict[str, dict[str, Any]]:
    """The results of each unit."""
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["units"]
    return found


def scores() -> list[list[str]]:
    """The cells of the table: unit, its files, mutants, how many were noticed, the score, commit and date."""
    rows = []
    for unit, result in read().items():
        noticed, number = sum(result["mutants"].values()), len(result["mutants"])
        files = ", ".join(f"`{pattern}`" for pattern in UNITS[unit].sources)
        figures = [str(number), str(noticed), f"{noticed / number:.0%}"]
        rows.append([unit, files, *figures, f"`{result['commit'].rstrip('+')}`", result["date"]])
    return rows


def survivors() -> list[str]:
    """The lines about the mutants that no test has noticed."""
    lines: list[str] = []
    for unit, result in read().items():
        lines += [f"## {unit.capitalize()}", ""]
        for name, survivor in result["survivors"].items():
            path, _, rest = name.partition(":")
            change = rest.partition(": ")[2]
            lines += [f"- `{path}`, `{survivor['line']}`: `{change}`.", f"  {survivor['why']}"]
        if not result["survivors"]:
            lines.append("All were noticed.")
        lines.append("")
    return lines


def page() -> str:
    """The whole page."""
    head = [
        "| unit | files | mutants | noticed | score | commit | date |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    table = [f"| {' | '.join(row)} |" for row in scores()]
    return "\n".join([*INTRODUCTION, *head, *table, "", *survivors()]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
