"""Draw the tables of fuzzing and of mutants on the page about reliability: ``python -m tools.draw_reliability``.

``python -m qa.fuzz TARGET --write --result fuzz`` and ``python -m qa.mutants --result mutants --resume`` make the
results; a test compares the page with them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tools import draw_mutants

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "reliability.md"
#: Target -> what it reads.
READ: Final = {
    "frames": "a connection's bytes, headers and runs of messages",
    "datagrams": "announcements, files of a shared directory, messages of DNS-SD",
    "journals": "segments, batches, indexes, manifests, large bodies, records",
    "filters": "filters, and what they say of messages",
    "urls": "URLs of clients and of places",
    "settings": "settings files, which are written and read again",
}


def fuzzing() -> list[list[str]]:
    """The cells of the table of targets."""
    found = json.loads((ROOT / "docs" / "results" / "fuzz.json").read_text(encoding="utf-8"))["targets"]
    rows = []
    for name, run in found.items():
        figures = [f"{run[key]:,}" for key in ("executions", "branches", "inputs", "seconds")]
        rows.append([name, READ[name], *figures, run["date"]])
    return rows


def mutants() -> list[list[str]]:
    """The cells of the table of mutants."""
    return [[unit, *figures] for unit, _, *figures, _, _ in draw_mutants.scores()]


def page(text: str) -> str:
    """The page with both tables as the results have them."""
    for heading, rows in (("Bytes that nobody of ours has written", fuzzing()), ("Tests that can fail", mutants())):
        before, mark, part = text.partition(f"\n## {heading}\n")
        head, rule, rest = part.partition("| --- |")
        ends, _, rest = rest.partition("\n")
        behind = rest[rest.index("\n\n") :] if rest.startswith("|") else f"\n{rest}"
        lines = [f"| {' | '.join(row)} |" for row in rows]
        text = f"{before}{mark}{head}{rule}{ends}\n" + "\n".join(lines) + behind
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
