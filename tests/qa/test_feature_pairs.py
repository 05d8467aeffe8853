"""Features that meet on one queue: every pair meets, nothing is wrong, and what is wrong is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tools import draw_feature_pairs

from meshq.client import Client, Consumer, Transaction
from qa.pairs.__main__ import SEEDS, played, rows_of
from qa.pairs.covering import array_of, counts_of, missing_triples, pairs_of
from qa.pairs.features import ACTING, EXCLUDED, FEATURES


def test_every_pair_meets_in_the_seeds_of_ci_and_none_that_can_not() -> None:
    names = list(FEATURES)
    counts = counts_of(rows_of(SEEDS), names)
    assert min(counts[pair] for pair in pairs_of(names, list(EXCLUDED))) >= 1
    assert [counts[one, other] + counts[other, one] for one, other in EXCLUDED] == [0] * len(EXCLUDED)


def test_a_longer_array_begins_as_a_shorter_one_and_the_triples_that_are_missing_are_counted() -> None:
    letters = "abcdef"
    assert array_of(letters, 9)[:4] == array_of(letters, 4)
    assert missing_triples([frozenset("abc"), frozenset("abd")], "abcd") == 2
    assert missing_triples([frozenset("abc")], "abcd", [("a", "d")]) == 1


def test_the_page_is_that_of_the_last_run_in_which_every_pair_met() -> None:
    result = json.loads(draw_feature_pairs.RESULT.read_text(encoding="utf-8"))
    assert result["features"] == list(FEATURES), "run python -m qa.pairs --seeds 200 --result pairs"
    assert draw_feature_pairs.PAGE.read_text(encoding="utf-8") == draw_feature_pairs.page(result)
    assert [(one, other) for one, other, _ in result["pairs"]] == pairs_of(list(FEATURES), list(EXCLUDED))
    assert min(count for _, _, count in result["pairs"]) >= 1 and result["failed"] == []
    assert result["triples_missing"] == 0
    assert list(result["acted"]) == list(ACTING) and min(result["acted"].values()) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken_where_features_meet(part: int) -> None:
    for seed, row in list(enumerate(rows_of(SEEDS)))[part::4]:
        assert played(seed, row).error is None, f"seed {seed}: {', '.join(sorted(row))}"


async def commits(self: Transaction) -> None:
    """A rollback that commits."""
    await self.commit()


async def says_so(self: Consumer, *deliveries: Any, confirm: bool = False) -> None:
    """An acknowledgement that is confirmed, and was never sent."""


async def purges(self: Client, name: str, **options: Any) -> int:
    """Messages that are to go back are gone."""
    return await self.purge_queue(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "wrong", "features", "promise"),
    [
        (Transaction, "rollback", commits, {"transactions"}, "P3"),
        (Consumer, "ack", says_so, {"groups", "given back"}, "P4"),
        (Client, "redrive", purges, {"dead letters", "redrive"}, "P5"),
    ],
)
def test_a_mistake_is_found_where_its_features_meet(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    wrong: Callable[..., Any],
    features: set[str],
    promise: str,
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    assert played(3, frozenset(features)).caught_by == promise
