"""Every feature of delivery in every surrounding: each cell has its expected outcome, and fails without its feature."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from tools import draw_delivery_matrix

from meshq.errors import UsageError
from qa.matrix import check as matrix_check
from qa.matrix import pairs
from qa.matrix.ablations import ABLATIONS, Ablation
from qa.matrix.cells import CELLS, FEATURES
from qa.matrix.feature import (
    COLUMNS,
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
from qa.matrix.pairs import play_in_pairs
from qa.matrix.stage import Stage
from qa.seeded.changed_copy import changed_file

#: Real sockets are for tests that may wait for the machine.
PARAMETERS = [
    pytest.param(cell, id=str(cell), marks=[pytest.mark.real] if cell.column.transport == "tcp" else [])
    for cell in CELLS
    if not cell.column.pair
]
IN_PAIRS = [cell for cell in CELLS if cell.column.pair]
BY_NAME = {str(cell): cell for cell in CELLS}


@pytest.mark.matrix
@pytest.mark.parametrize("cell", PARAMETERS)
def test_a_cell_has_its_expected_outcome(cell: Cell) -> None:
    assert cell.play() is None


@functools.cache
def problems_in(pair: str) -> Mapping[str, str | None]:
    """The problem of each cell of a pair: they are played together, as nodes that change serve all of them."""
    return play_in_pairs([cell for cell in IN_PAIRS if cell.column.transport == pair])


@pytest.mark.matrix
@pytest.mark.parametrize("cell", IN_PAIRS, ids=str)
def test_a_cell_in_a_pair_has_its_expected_outcome_before_across_failover_and_across_failback(cell: Cell) -> None:
    assert problems_in(cell.column.transport)[str(cell)] is None


def test_there_is_a_cell_for_every_feature_in_every_surrounding() -> None:
    assert len(FEATURES) >= 40
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
    alone = [column for column in COLUMNS if not column.pair]
    assert len(alone) == len(STORAGES) * len(TRANSPORTS) * len(TIMES) == 30
    for pair in PAIRS:
        turns = [(column.storage, column.time) for column in COLUMNS if column.transport == pair]
        assert {time for storage, time in turns if storage == "durable"} == {"before", "failover", "failback"}
        # Whatever is kept in another way goes there and back.
        both = {storage for storage, time in turns if time == "failover and failback"}
        assert both == {*STORAGES} - {"durable", "memory"}
    assert [(cell.feature, cell.column) for cell in CELLS] == [(one, column) for one in FEATURES for column in COLUMNS]
    assert len(BY_NAME) == len(CELLS)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_an_entry_says_what_it_shows_and_every_outcome_of_it_is_told_from_nothing(feature: Feature) -> None:
    names = {other.name for other in FEATURES} - {feature.name}
    assert set(feature.uses) <= names
    assert promise_of(feature).endswith(".") and "\n" not in promise_of(feature)
    for column in COLUMNS:
        cell = Cell(feature, column)
        fate = cell.fate
        assert fate in FATES
        assert (fate == "works") is (column.time == "before")
        # What is kept, and what works, can be told from what is left of nothing.
        assert fate == "gone" or cell.expected != feature.gone
        # Only what goes with its session, or is not durable, may be gone from a broker that keeps things.
        if fate == "gone":
            assert column.storage in ("memory", "non-durable") or feature.non_durable
        # Only what goes with its consumer is made anew where the clients go on.
        if fate == "renewed":
            assert column.pair and feature.non_durable
    assert set(feature.less) <= set(STORAGES)


class Wrong(Feature):
    """Never as expected."""

    name = "wrong"
    works = "nothing"
    gone = None

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    async def arrange(self, stage: Stage) -> None:
        if self.error is not None:
            raise self.error

    async def act(self, stage: Stage) -> Any:
        return "something"


class Hanging(Wrong):
    """Never at all."""

    async def act(self, stage: Stage) -> Any:
        await trio.sleep_forever()


class Unarranged(Wrong):
    """Right in what is seen, and nothing was arranged."""

    works = kept = "something"

    async def act(self, stage: Stage) -> Any:
        await stage.send("work", b"1")
        assert await stage.queues() == ["work"]
        return "something"


def test_cells_in_a_pair_are_told_apart_and_each_has_its_own_problem() -> None:
    features = [Wrong(), Wrong(UsageError("no")), Unarranged(), Unarranged()]
    features[1].name, features[2].name, features[3].name = "refused", "right", "right, too"
    cells = [Cell(feature, Column("durable", "shared store", "failover")) for feature in features]
    assert list(play_in_pairs(cells).values()) == [
        "saw 'something', not 'nothing'",
        "raised UsageError('no')",
        None,
        None,
    ]


def test_cells_of_a_pair_whose_nodes_do_not_change_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(pairs.MatrixPair, "_fail_over", lambda pair: nothing())
    monkeypatch.setattr(pairs, "CHANGE_S_MAX", 1.0)
    cells = [Cell(Unarranged(), Column("durable", "shared store", time)) for time in ("before", "failover")]
    before, failover = play_in_pairs(cells).values()
    assert (before, failover) == (None, "raised ChangeError('the nodes did not change')")


def test_a_cell_says_what_it_saw_and_what_it_should_have_seen() -> None:
    column = Column("memory", "inproc", "before")
    assert Cell(Wrong(), column).play() == "saw 'something', not 'nothing'"
    assert Cell(Wrong(UsageError("no")), column).play() == "raised UsageError('no')"
    assert Cell(Wrong(), Column("memory", "inproc", "restart")).play() == "saw 'something', not None"
    assert Cell(Hanging(), column).play() == "took longer than 600 s of its own time"
    with pytest.raises(BaseExceptionGroup):
        Cell(Wrong(KeyboardInterrupt()), column).play()


# -- without its feature


def test_every_feature_has_an_ablation_and_every_ablation_is_of_features() -> None:
    names = {feature.name for feature in FEATURES}
    assert {name for ablation in ABLATIONS if not ablation.lasting for name in ablation.features} == names
    assert {name for ablation in ABLATIONS for name in ablation.features} == names
    assert len({ablation.name for ablation in ABLATIONS}) == len(ABLATIONS)


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.name)
def test_an_ablation_is_a_line_or_two_that_fits_the_product_as_it_is(ablation: Ablation) -> None:
    path, text = changed_file(ablation)
    compile(text, path.name, "exec")
    assert ablation.old.count("\n") <= 2
    assert not ablation.function.startswith("meshq.testing")


def ablation_of(name: str) -> Ablation:
    (found,) = [ablation for ablation in ABLATIONS if ablation.name == name]
    return found


@pytest.mark.matrix
def test_the_cells_of_a_feature_that_is_switched_off_fail_and_no_others() -> None:
    # Beside its own feature, features whose messages stay in a queue, too; the command plays those of all.
    rows = ("pause and resume", "purge", "priority", "browsing")
    verdict = matrix_check.check(ablation_of("pause and resume, across a restart"), rows)
    assert (verdict.missed, verdict.wrong) == ((), ())
    assert set(verdict.failed) == {
        f"pause and resume: {storage}, {transport}, {time}"
        for storage in ("durable", "paged", "large", "non-durable")
        for transport in TRANSPORTS
        for time in ("restart", "power cut")
    } | {
        f"pause and resume: {storage}, {pair}, {time}" for pair in PAIRS for storage, time in TURNS if time != "before"
    }


def test_a_cell_that_does_not_fail_without_its_feature_is_found_and_so_is_one_of_another_feature() -> None:
    divert = ablation_of("divert")
    every = [str(cell) for cell in CELLS if "divert" in cell.feature.name and cell.decisive]
    assert matrix_check.judge(divert, every).good
    # Those of features that use it may fail, or not.
    own = [name for name in every if name.startswith("divert:")]
    assert matrix_check.judge(divert, own).good
    assert matrix_check.judge(divert, own[1:]).missed == (own[0],)
    other = "priority: memory, tcp, before"
    assert matrix_check.judge(divert, [*own, other]).wrong == (other,)
    lasting = ablation_of("divert, across a restart")
    before = [name for name in own if name.endswith("before")]
    assert matrix_check.judge(lasting, own).wrong == tuple(before)


def test_the_command_plays_and_checks_what_it_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        matrix_check, "CELLS", [cell for cell in CELLS if cell.column == Column("memory", "inproc", "before")]
    )
    assert matrix_check.main(["--feature", "purge"]) == 0
    assert capsys.readouterr().out == "1 cells, 0 failed\n"
    monkeypatch.setattr(
        matrix_check,
        "check",
        lambda ablation, rows, columns: matrix_check.judge(ablation, ["delay: memory, inproc, before"]),
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    assert matrix_check.main(["--check", "--feature", "purge", "--result", "x"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "FAILED purge: 1 cells failed",
        "       should have failed: purge: memory, inproc, before",
        "       should not have failed: delay: memory, inproc, before",
    ]
    written = tmp_path / "docs" / "results" / "x.json"
    assert '"failed_and_should_not_have": {\n    "delay": [' in written.read_text()
    # What is added was not played before, and nothing of before is played again.
    before = json.loads(written.read_text())["switched_off"]["purge"]
    written.write_text(written.read_text().replace(f'"cells": {before["cells"]}', '"cells": 1'))
    assert matrix_check.main(["--check", "--feature", "purge", "--add", "delay", "--result", "x"]) == 1
    found = json.loads(written.read_text())["switched_off"]["purge"]
    more = len(matrix_check.cells_of(["delay"]))
    assert found["cells"] == 1 + more and found["added"] == [f"{more} at {before['commit']}"]
    assert found["failed"] == before["failed"]


# -- what is written down


def test_in_the_last_check_every_feature_was_switched_off_and_only_what_had_to_fail_failed() -> None:
    result = json.loads(draw_delivery_matrix.RESULT.read_text(encoding="utf-8"))
    assert list(result["switched_off"]) == [ablation.name for ablation in ABLATIONS]
    for ablation in ABLATIONS:
        found = result["switched_off"][ablation.name]
        failed = [f"{feature}: {column}" for feature, columns in found["failed"].items() for column in columns]
        played = [
            cell
            for cell in CELLS
            if (
                str(cell.column) in found.get("pairs", ())
                if cell.column.pair
                else cell.column.storage in found["storages"]
            )
        ]
        assert len(played) == found["cells"]
        # What lasts over a restart has to last over a change of nodes, in each kind of pair.
        changed = {cell.column.transport for cell in played if cell.column.pair and cell.column.time != "before"}
        assert changed == {*PAIRS} or not ablation.lasting
        assert failed and matrix_check.judge(ablation, failed, played).good, ablation.name
        assert (found["failed_and_should_not_have"], found["should_have_failed"]) == ({}, {})


def test_the_page_is_not_stale() -> None:
    assert draw_delivery_matrix.PAGE.read_text(encoding="utf-8") == draw_delivery_matrix.page()
