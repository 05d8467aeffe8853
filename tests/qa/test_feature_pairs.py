"""Features that meet on one queue: every pair meets, nothing is wrong, and what is wrong is found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tools import draw_feature_pairs

from meshq import AddressSettings, Broker, UsageError
from meshq.client import Client, Consumer, Transaction
from qa.pairs import __main__ as command
from qa.pairs.__main__ import SEEDS, Played, played, rows_of
from qa.pairs.accounts import Fate, MeetingAccounts, MeetingError
from qa.pairs.covering import Row, array_of, counts_of, missing_triples, pairs_of
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


def test_a_run_says_what_was_played_and_the_command_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[int] = []

    def play(seed: int, row: Row) -> Played:
        asked.append(seed)
        return Played(MeetingError("P5: lost") if seed == 2 else None, 1.0, Counter())

    monkeypatch.setattr(command, "played", play)
    arguments = ["--first", "1", "--seeds", "3", "--until", "P5", "--json", "--result", "p"]
    assert command.main(arguments) == 1
    assert json.loads(capsys.readouterr().out)["seeds"] == 2
    assert asked == [1, 2]
    found = json.loads((tmp_path / "docs/results/p.json").read_text(encoding="utf-8"))
    assert found["command"] == f"python -m qa.pairs {' '.join(arguments)}"
    assert (found["kind"], found["format"], found["seeds"], found["failed"]) == ("pairs", 1, 2, [2])
    counts = counts_of(rows_of(4)[1:3], list(FEATURES))
    assert found["pairs"] == [[one, other, counts[one, other]] for one, other, _ in found["pairs"]]
    help_text = command.parser().format_help()
    assert f"how many ({SEEDS})" in help_text and "the first of them (0)" in help_text


async def test_a_queue_that_keeps_the_newest_of_each_key_takes_no_cursor() -> None:
    assert ("last value", "cursors") in EXCLUDED
    settings = {"q": AddressSettings(default_last_value_key="key")}
    async with Broker("b", data_dir=None, queues=["q"], address_settings=settings) as broker, broker.client() as client:
        with pytest.raises(UsageError, match="takes no cursor: it keeps only the last value of each key"):
            async with client.cursor("q", "tape"):
                raise AssertionError("it was let in")


def accounts(*features: str) -> MeetingAccounts:
    """MeetingAccounts of two messages of a key that were confirmed and taken, with their copies."""
    made = MeetingAccounts(frozenset(features))
    for body in (b"1", b"2"):
        made.fates[body] = Fate(key="a", confirmed=True, seen_from=float(body), seen_until=float(body))
        for book in made.books.values():
            book.taken[body] = 1
    return made


def test_accounts_in_which_nothing_is_missing_are_right() -> None:
    accounts("divert", "subscriptions", "last value").judge()


def lose(name: str, body: bytes, made: MeetingAccounts) -> None:
    """Take a message out of a book."""
    del made.books[name].taken[body]


def test_a_message_may_be_gone_for_a_reason_only() -> None:
    replaced, purged, doubted = accounts("last value"), accounts("purge"), accounts()
    lose("orders", b"1", replaced)
    lose("orders", b"1", purged)
    purged.purged = purged.purged_most = 1
    lose("orders", b"1", doubted)
    doubted.books["orders"].in_doubt.add(b"1")
    for made in (replaced, purged, doubted):
        made.judge()


@pytest.mark.parametrize(
    ("features", "change", "promise"),
    [
        ((), lambda made: made.books["orders"].taken.update([b"3"]), "P1"),
        ((), lambda made: setattr(made.fates[b"1"], "refused", True), "P3"),
        ((), lambda made: made.books["orders"].taken.update([b"1"]), "P4"),
        ((), partial(lose, "orders", b"1"), "P5"),
        # The newest of a key is lost.
        (("last value",), partial(lose, "orders", b"2"), "P5"),
        (("last value", "redrive"), lambda made: made.books["orders"].taken.clear(), "P5"),
        (("divert",), partial(lose, "copies", b"1"), "P6"),
        (("last value",), lambda made: made.check_newest([b"1", b"2"]), "P7"),
        (("purge",), lambda made: setattr(made, "purged", 1), "P8"),
        (("subscriptions",), partial(lose, "archive", b"1"), "P11"),
        (("subscriptions",), partial(lose, "desk", b"1"), "P11"),
    ],
)
def test_accounts_that_are_wrong_name_the_promise(
    features: tuple[str, ...], change: Callable[[MeetingAccounts], object], promise: str
) -> None:
    made = accounts(*features)
    with pytest.raises(MeetingError, match=f"^{promise}: "):
        change(made)
        made.judge()


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


async def counts_too_many(self: Client, name: str) -> int:
    """A purge that says to have removed what nobody has sent."""
    return 100


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
        (Client, "purge_queue", counts_too_many, {"purge", "delay"}, "P8"),
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
