"""Draw the page of feature pairs: ``python -m tools.draw_feature_pairs``, after ``qa.pairs --result pairs``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qa.pairs.features import EXCLUDED, FEATURES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "feature-pairs.md"
RESULT = ROOT / "docs" / "results" / "pairs.json"


def page(result: dict[str, Any]) -> str:
    """The page, from the features and a file of results."""
    names = list(FEATURES)
    counts = {(one, other): count for one, other, count in result["pairs"]}
    listed = [f"| {number} | {name} | {said} |" for number, (name, said) in enumerate(FEATURES.items(), 1)]
    head = "| | " + " | ".join(str(number) for number in range(1, len(names))) + " |"
    rows = [head, "|" + " --- |" * len(names)]
    for row, name in enumerate(names[1:], 1):
        cells = [
            str(counts.get((names[column], name), "-")) if column < row else "" for column in range(len(names) - 1)
        ]
        rows.append(f"| {row + 1} {name} | " + " | ".join(cells) + " |")
    apart = "; ".join(f"*{one}* and *{other}*" for one, other in EXCLUDED)
    missing = result["triples_missing"]
    return "\n".join(
        [
            "# Feature pairs",
            "",
            "This page says how meshq is tested; a user has nothing to do here.",
            "",
            "Single features each have tests, and the [delivery matrix](delivery-matrix.md) plays each everywhere.",
            "What is wrong is wrong in pairs: here features meet on one queue.",
            "A seed has a part of the features below, by a covering array that takes the rarest pairs first;",
            "producers, consumers and an operator work on one queue, nodes die where that is a feature, and in the",
            "end all messages are accounted for: what was confirmed was taken, nothing twice, nothing that was rolled",
            "back, and each copy of a divert is there.",
            "",
            f"`{result['command']}` has played {result['seeds']} seeds, {result['simulated_s']:,} simulated seconds",
            f"({result['date']}, commit `{result['commit']}`): {len(result['failed'])} failed, no pair is missing,",
            f"and of all triples {missing} have never met.",
            "CI plays the first 24 seeds, in which every pair meets.",
            "Whoever adds a feature that may meet others on a queue adds it to `qa/pairs/features.py`.",
            "",
            "This page is drawn by `python -m tools.draw_feature_pairs` from `qa/pairs/features.py` and",
            "`docs/results/pairs.json`. A test fails when it is stale.",
            "",
            "## The features",
            "",
            "| | feature | when it is on |",
            "| --- | --- | --- |",
            *listed,
            "",
            "## How often each pair was together",
            "",
            f"Pairs that can't be together have a dash: {apart}.",
            "",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Draw the page."""
    PAGE.write_text(page(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
