"""Draw the page of feature pairs: ``python -m tools.draw_feature_pairs``, after ``qa.pairs --result pairs``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qa.pairs.__main__ import SEEDS
from qa.pairs.features import EXCLUDED, FEATURES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "feature-pairs.md"
RESULT = ROOT / "docs" / "results" / "pairs.json"
#: The aim of the meetings, and the promises that are checked there.
CHECKED = (
    "Single features each have tests, and the [delivery matrix](delivery-matrix.md) plays each everywhere.",
    "What is wrong is wrong in pairs: here features meet on one queue.",
    "A seed has a part of the features below, by a covering array that takes the rarest pairs first;",
    "producers, consumers and an operator work on one queue, nodes die where that is a feature, and in the",
    "end all messages are accounted for: what was confirmed was taken, nothing twice, nothing that was rolled",
    "back, each copy of a divert and of a subscription is there, and the other side of a bridge has each once.",
    "A queue that keeps the newest of each key keeps it, and no second one.",
    "What a purge says to have removed is gone, and nothing else is.",
    "A cursor reads in the order of the sequences, and the same when it reads again.",
    "A queue that is to go when nobody needs it goes.",
    "Who may not is told so by a `SecurityError`, and nothing of it is left.",
)


def features(acted: dict[str, int]) -> list[str]:
    """The rows of the features, with how often each was done."""
    return [
        f"| {number} | {name} | {said} | {acted.get(name, '')} |"
        for number, (name, said) in enumerate(FEATURES.items(), 1)
    ]


def page(result: dict[str, Any]) -> str:
    """The page, from the features and a file of results."""
    names = list(FEATURES)
    counts = {(one, other): count for one, other, count in result["pairs"]}
    listed = features(result["acted"])
    head = "| | " + " | ".join(str(number) for number in range(1, len(names))) + " |"
    rows = [head, "|" + " --- |" * len(names)]
    for row, name in enumerate(names[1:], 1):
        cells = [
            str(counts.get((names[column], name), "-")) if column < row else "" for column in range(len(names) - 1)
        ]
        rows.append(f"| {row + 1} {name} | " + " | ".join(cells) + " |")
    apart = [f"- *{one}* and *{other}*: {reason}." for (one, other), reason in EXCLUDED.items()]
    missing = result["triples_missing"]
    return "\n".join(
        [
            "# Feature pairs",
            "",
            "This page says how meshq is tested; a user has nothing to do here.",
            "",
            *CHECKED,
            "",
            f"`{result['command']}` has played {result['seeds']} seeds, {result['simulated_s']:,} simulated seconds",
            f"({result['date']}, commit `{result['commit']}`): {len(result['failed'])} failed, no pair is missing,",
            f"and of all triples {missing} have never met.",
            f"CI plays the first {SEEDS} seeds, in which every pair meets.",
            "Threads and asyncio have no virtual time: `tests/real/faces/test_feature_pairs.py` lets features meet",
            "that need no second node and no fault, over each face, in real time and with the same accounts.",
            "Whoever adds a feature that may meet others on a queue adds it to `qa/pairs/features.py`.",
            "",
            "This page is drawn by `python -m tools.draw_feature_pairs` from `qa/pairs/features.py` and",
            "`docs/results/pairs.json`. A test fails when it is stale.",
            "",
            "## The features",
            "",
            "How often it was done stands beside what is done now and then, or to some messages only.",
            "",
            "| | feature | when it is on | done |",
            "| --- | --- | --- | --- |",
            *listed,
            "",
            "## How often each pair was together",
            "",
            "Pairs that can't be together have a dash:",
            "",
            *apart,
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
