"""Draw the delivery matrix from its entries and the last check: ``python -m tools.draw_delivery_matrix``.

``python -m qa.matrix --check --result matrix`` makes the result; a test compares the page with all of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qa.matrix.ablations import ABLATIONS, Ablation
from qa.matrix.cells import CELLS, FEATURES
from qa.matrix.feature import (
    FATES,
    PAIRS,
    STORAGES,
    TIMES,
    TRANSPORTS,
    TURNS,
    Cell,
    Column,
    Feature,
    promise_of,
)
from qa.seeded.changed_copy import diff_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "delivery-matrix.md"
RESULT = ROOT / "docs" / "results" / "matrix.json"

#: A sentence to a line.
INTRODUCTION = (
    "# Delivery matrix",
    "",
    "Every feature of delivery is played in every surrounding: on a durable broker and on one in memory,",
    "on one whose queues are paged: all but the first of their runs are on the disk only,",
    "on one all of whose messages are large: their bodies are streamed, and lie beside the journal;",
    "and on a durable one to which nothing durable is sent;",
    "by clients in the same process and over TCP, and with what may happen to the broker",
    "between what is arranged and what is done: nothing, a restart while its clients are there, or a power cut.",
    "And every feature is played in a pair of nodes, by replication and with a shared store:",
    "what is arranged is used before anything happens, at the backup after the primary has crashed,",
    "and at the primary after it has come back; the clients go on from node to node.",
    "Each of the {cells} cells is a test with an expected outcome.",
    "",
    "A table of tests that pass proves nothing by itself.",
    "So each feature is switched off in a copy of the product, by a change of a line or two,",
    "and the copy plays all cells of a broker; where the feature is to fail across a restart,",
    "and where the number of cells below says so, it plays cells in pairs, too.",
    "The cells of that feature have to fail wherever something is to be seen of it,",
    "and of the others only those may fail that use it.",
    "",
    "`python -m qa.matrix` plays the cells, and with `--check` switches the features off one by one;",
    "`--feature NAME` for one of them.",
    "",
    "This page is drawn by `python -m tools.draw_delivery_matrix`",
    "from the entries and ablations in `qa/matrix/` and from `docs/results/matrix.json`",
    "({date}). A test fails when it is stale.",
)

#: What happens in a pair.
IN_PAIRS = """\
*Before* nothing happens.
*Failover*: what was arranged at the primary is used at the backup, which has taken over as the primary crashed.
*Failback*: what was arranged at that backup is used at the primary, which has come back and has taken its place again.
*Failover and failback*: what was arranged at the primary is used there, after both.
All cells of a pair are played at once, each with addresses and clients of its own;
each client stays, and its session is made anew at each change of nodes."""


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of the page."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fates(feature: Feature, places: Sequence[tuple[str, str]], transports: Sequence[str]) -> list[str]:
    """What becomes of a feature by storage and time, which is the same over each kind of connection."""
    found = []
    for storage, time in places:
        every = {Cell(feature, Column(storage, transport, time)).fate for transport in transports}
        (fate,) = every
        found.append(fate)
    return found


def played(result: dict[str, Any]) -> str:
    """Say how many cells were played with a feature switched off, and when."""
    return ", of these ".join([f"{result['cells']} at {result['commit']}", *result.get("added", ())])


def cells() -> str:
    """The table of the cells."""
    places = [(storage, time) for storage in STORAGES for time in TIMES]
    titles = ["feature", *[f"{storage}: {time}" for storage, time in places], "uses"]
    rows = [[feature.name, *fates(feature, places, TRANSPORTS), ", ".join(feature.uses)] for feature in FEATURES]
    return table(titles, rows)


def cells_in_pairs() -> str:
    """The table of the cells in pairs."""
    titles = ["feature"]
    for pair in PAIRS:
        titles += [f"{pair}: {time if storage == 'durable' else f'{storage}, {time}'}" for storage, time in TURNS]
    rows = [[feature.name, *[fate for pair in PAIRS for fate in fates(feature, TURNS, [pair])]] for feature in FEATURES]
    return table(titles, rows)


def outcomes() -> str:
    """What the words in the table mean."""
    return "\n".join(f"- *{fate}*: {meaning}." for fate, meaning in FATES.items())


def less() -> str:
    """What some cells can't show."""
    rows = [[feature.name, storage, why] for feature in FEATURES for storage, why in feature.less.items()]
    return table(["feature", "storage", "why"], rows)


def count(found: dict[str, list[str]]) -> int:
    """How many cells these are."""
    return sum(map(len, found.values()))


def switched_off(results: dict[str, Any]) -> str:
    """What happened when each feature was switched off."""
    rows = []
    for ablation in ABLATIONS:
        result = results[ablation.name]
        own = {name: columns for name, columns in result["failed"].items() if name in ablation.features}
        others = [name for name in result["failed"] if name not in ablation.features]
        mistakes = count(result["failed_and_should_not_have"]), count(result["should_have_failed"])
        rows.append(
            [
                ablation.name,
                f"`{ablation.function}`",
                str(count(own)),
                ", ".join(others),
                str(mistakes[0]),
                str(mistakes[1]),
                played(result),
            ]
        )
    titles = [
        "switched off",
        "function",
        "its cells that failed",
        "and cells of",
        "should not have",
        "should have, did not",
        "cells played",
    ]
    return table(titles, rows)


def change(ablation: Ablation) -> str:
    """What an ablation changes, as a diff."""
    return f"### {ablation.name[0].upper()}{ablation.name[1:]}\n\n```diff\n{diff_of(ablation)}\n```"


def page() -> str:
    """The whole page."""
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    about = {"cells": len(CELLS), "date": result["date"]}
    transports = " and ".join(TRANSPORTS)
    shown = "\n".join(f"- **{feature.name}**: {promise_of(feature)}" for feature in FEATURES)
    parts = [
        "\n".join(INTRODUCTION).format(**about),
        "## The cells",
        f"Each entry stands for {len(TRANSPORTS)} cells, {transports}.",
        cells(),
        "## The cells in a pair",
        IN_PAIRS,
        cells_in_pairs(),
        outcomes(),
        "## What cells can't show",
        "These cells are played as all others are, and what is asked for there can't be had:",
        less(),
        "## What is shown",
        shown,
        "## Switched off",
        switched_off(result["switched_off"]),
        "## The changes",
        *[change(ablation) for ablation in ABLATIONS],
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
