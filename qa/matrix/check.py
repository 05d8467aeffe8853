"""Play the delivery matrix; with --check, switch each of its features off, and see that its cells fail and no others.

A feature is switched off in a copy of the product, by a change of a line or two; the copy plays all cells.  What has to
fail are the cells of the feature in which something is to be seen of it; what may fail besides are cells of features
that use it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

import meshq
from qa.arguments import COUNT
from qa.matrix.ablations import ABLATIONS, Ablation
from qa.matrix.cells import CELLS, FEATURES
from qa.matrix.feature import COLUMNS, Cell
from qa.matrix.pairs import play_in_pairs
from qa.results import ResultFile, ResultFormat, about_here, add_result_option
from qa.seeded.changed_copy import run_changed

FORMAT: Final = ResultFormat(
    "delivery matrix", parts="switched_off", parts_type=dict, part_fields={"commit": str, "cells": int}
)
#: A copy that plays longer than that hangs.
PLAY_S_MAX: Final = 900.0


@attrs.frozen(kw_only=True)
class Verdict:
    """The result of one ablation: failed cells, right and wrong ones."""

    ablation: Ablation
    #: Cells that failed, as ``Cell`` names them.
    failed: tuple[str, ...]
    #: Cells that had to fail and did not; cells that failed and should not have.
    missed: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether its cells failed, and only cells that use it."""
        return not self.missed and not self.wrong


def users(names: Sequence[str]) -> frozenset[str]:
    """Return these features and all features that use them, directly or not."""
    found = dict.fromkeys(names)
    while more := [feature.name for feature in FEATURES if feature.name not in found and {*feature.uses} & {*found}]:
        found |= dict.fromkeys(more)
    return frozenset(found)


def judge(ablation: Ablation, failed: Sequence[str], played: Sequence[Cell] | None = None) -> Verdict:
    """Judge the cells that failed, among the cells that were ``played``; None: all."""
    cells = CELLS if played is None else played
    own, all_users = frozenset(ablation.features), users(ablation.features)

    def reaches(cell: Cell) -> bool:
        return not ablation.lasting or cell.fate != "works"

    must = [str(cell) for cell in cells if cell.feature.name in own and cell.decisive and reaches(cell)]
    may = {str(cell): None for cell in cells if cell.feature.name in all_users and reaches(cell)}
    return Verdict(
        ablation=ablation,
        failed=tuple(failed),
        missed=tuple(name for name in must if name not in failed),
        wrong=tuple(name for name in failed if name not in may),
    )


def play(cells: Sequence[Cell]) -> dict[str, str]:
    """Play cells; return the problem of each cell that failed."""
    problems = {str(cell): cell.play() for cell in cells if not cell.column.pair}
    problems |= play_in_pairs([cell for cell in cells if cell.column.pair])
    return {name: problem for name, problem in problems.items() if problem is not None}


def check(ablation: Ablation, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> Verdict:
    """Play cells with a copy of the product that has this ablation.

    ``rows``, ``columns``: parts of the names of the features and columns whose cells are played; none: all cells.
    """
    said = [word for row in rows for word in ("--feature", row)]
    said += [word for column in columns for word in ("--column", column)]
    found = run_changed(ablation, "qa.matrix", ["--json", *said], timeout_s=PLAY_S_MAX)
    return judge(ablation, list(found["failed"]), cells_of(rows, columns))


def cells_of(rows: Sequence[str], columns: Sequence[str] = ()) -> list[Cell]:
    """Return the cells of the features and columns whose names contain one of ``rows`` and of ``columns``.

    None given: all.
    """
    return [cell for cell in CELLS if _named(cell.feature.name, rows) and _named(str(cell.column), columns)]


def _named(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(part in name for part in parts)


def columns_of(parts: Sequence[str]) -> dict[str, list[str]]:
    """Return the storages, and the columns of pairs, among the columns whose names contain one of ``parts``."""
    named = [column for column in COLUMNS if _named(str(column), parts)]
    storages = dict.fromkeys(column.storage for column in named if not column.pair)
    return {"storages": list(storages), "pairs": [str(column) for column in named if column.pair]}


def by_feature(names: Sequence[str]) -> dict[str, list[str]]:
    """Names of cells, by feature."""
    found: dict[str, list[str]] = {}
    for name in names:
        feature, _, column = name.partition(": ")
        found.setdefault(feature, []).append(column)
    return found


def added(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the result of an ablation ``before``, with the cells of further features or columns played since."""
    kinds = ("failed", "failed_and_should_not_have", "should_have_failed")
    more = {*before.get("added", ()), f"{found['cells']} at {found['commit']}"}
    both: dict[str, Any] = {"cells": before["cells"] + found["cells"]}
    for kind in ("storages", "pairs"):
        both[kind] = list(dict.fromkeys([*before.get(kind, ()), *found[kind]]))
    for kind in kinds:
        old, new = before[kind], found[kind]
        both[kind] = {name: list(dict.fromkeys([*old.get(name, ()), *new.get(name, ())])) for name in {**old, **new}}
    return {**before, **both, "added": sorted(more)}


def result_of(
    verdicts: Sequence[Verdict],
    arguments: Sequence[str],
    before: dict[str, Any],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the result of a check; of ablations that were not checked, the result ``before``.

    ``rows``, ``columns``: parts of the names of the features and columns whose cells were played and are added to
    ``before``; none: all cells.
    """
    here = about_here()
    found = {
        verdict.ablation.name: {
            "commit": here["commit"],
            "cells": len(cells_of(rows, columns)),
            **columns_of(columns),
            "failed": by_feature(verdict.failed),
            "failed_and_should_not_have": by_feature(verdict.wrong),
            "should_have_failed": by_feature(verdict.missed),
        }
        for verdict in verdicts
    }
    if rows or columns:
        found = {name: added(before[name], one) for name, one in found.items()}
    known = {**before, **found}
    return {
        "command": " ".join(["python -m qa.matrix", *arguments]).strip(),
        **here,
        "switched_off": {ablation.name: known[ablation.name] for ablation in ABLATIONS if ablation.name in known},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, or check; returns the exit status: 0, or 1 if a cell or a check failed."""
    parser = argparse.ArgumentParser(prog="python -m qa.matrix", description=__doc__)
    parser.add_argument("--feature", action="append", metavar="NAME", help="only features whose name contains this")
    parser.add_argument("--column", action="append", metavar="NAME", help="only columns whose name contains this")
    parser.add_argument("--check", action="store_true", help="switch each feature off and see that its cells fail")
    parser.add_argument(
        "--jobs", type=COUNT, default=os.cpu_count() or 1, metavar="J", help="copies at a time (all cores)"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end, and nothing else")
    parser.add_argument(
        "--add", action="append", metavar="NAME", help="with --check: only cells of features whose name contains this"
    )
    add_result_option(parser, FORMAT, "write what --check has found into")
    options = parser.parse_args(arguments)
    said = sys.argv[1:] if arguments is None else list(arguments)
    wanted: list[str] = options.feature or []
    columns: list[str] = options.column or []
    if options.check:
        return _check(wanted, options.add or [], columns, options.jobs, options.result, said)
    cells = cells_of(wanted, columns)
    failed = play(cells)
    if options.json:
        _say(json.dumps({"package": str(Path(meshq.__file__).parent), "cells": len(cells), "failed": failed}))
    else:
        for name, problem in failed.items():
            _say(f"FAILED {name}: {problem}")
        _say(f"{len(cells)} cells, {len(failed)} failed")
    return 1 if failed else 0


def _check(
    wanted: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    jobs: int,
    result: ResultFile | None,
    said: Sequence[str],
) -> int:
    before = result.read()["switched_off"] if result is not None else {}
    chosen = [ablation for ablation in ABLATIONS if _named(ablation.name, wanted)]
    if columns:
        # What was played there once is not played again.
        asked = {*columns_of(columns)["pairs"]}
        chosen = [one for one in chosen if not asked or not asked <= {*before.get(one.name, {}).get("pairs", ())}]
    if rows:
        # Those that were played whole since the rows are there lack nothing.
        chosen = [one for one in chosen if before.get(one.name, {}).get("cells", 0) < len(CELLS)]
    verdicts: list[Verdict] = []
    # Each thread waits for a process of its own.
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(partial(check, rows=rows, columns=columns), chosen):
            verdicts.append(verdict)
            _report(verdict)
    if result is not None:
        result.write(result_of(verdicts, said, before, rows, columns))
    return 0 if all(verdict.good for verdict in verdicts) else 1


def _report(verdict: Verdict) -> None:
    _say(f"{'ok    ' if verdict.good else 'FAILED'} {verdict.ablation.name}: {len(verdict.failed)} cells failed")
    for name in verdict.missed:
        _say(f"       should have failed: {name}")
    for name in verdict.wrong:
        _say(f"       should not have failed: {name}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
