"""Draw the table of what each policy promises for each failure: ``python -m tools.draw_promises``.

The rows are those of ``qa/promises/table.py``, and each of them is played in a simulation; a test compares the page
with them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from qa.ha.pair import LEASE_S, TTL_S
from qa.promises.table import NAMES, SECTIONS, PromiseRow, Section

PAGE = Path(__file__).parents[1] / "docs" / "promises.md"

#: A sentence to a line.
INTRODUCTION = (
    "# What survives what",
    "",
    "For each policy of high availability and each failure: what holds, for how long nothing is served,",
    "and what an operator has to do.",
    "*It* is the node that serves when the failure comes; the node that waits is the other one.",
    "",
    "Each row is played in a simulation by each run of the tests (`qa/promises`): a client sends all the while,",
    "the failure comes, the operator does what the row says, and everything that was confirmed has to be there, once.",
    "Where a row says that something is lost, the test sees that it is lost.",
    f"There the nodes of a pair give each other up after {TTL_S:g} s of silence (`connection_ttl`; 60 s by default),",
    f"and a lease of a shared store lasts {LEASE_S:g} s (5 s by default), so times without service are short.",
    "",
    "Messages that are not durable are gone with the node that had them, by every policy.",
    "What becomes of each feature of delivery when the nodes of a pair change:",
    "[Delivery matrix](delivery-matrix.md).",
    "[Choose and set up](how-to/survive-a-node.md) · [How it works](design/high-availability.md)",
    "",
    "This page is drawn by `python -m tools.draw_promises`.",
    "",
)


def _row(row: PromiseRow) -> str:
    within = "until the operator has done it" if row.within_s is None else f"at most {row.within_s:g} s"
    kept = "all" if row.kept else "**not all**"
    return f"| {NAMES[row.failure]} | {row.holds} | {within} | {kept} | {row.operator} |"


def _section(section: Section) -> list[str]:
    return [
        f"## {section.name[0].upper()}{section.name[1:]}",
        "",
        section.about,
        "",
        "| failure | what holds | without service | what was confirmed is there | what an operator does |",
        "| --- | --- | --- | --- | --- |",
        *map(_row, section.rows),
        "",
    ]


def page() -> str:
    """Return the page."""
    lines = [*INTRODUCTION]
    for section in SECTIONS:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write the page; returns the exit status."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
