"""Offsets as Spark keeps them, and the places that options name."""

from __future__ import annotations

import json

import pytest

from meshq.errors import SettingsError
from meshq.spark._offsets_format import Offset, Place, bounds_of, key_of, parts_of, ranges_between

A, B = key_of("orders", "aa"), key_of("x@y", "bb")
OFFSET = Offset("audit", {B: Place(9, 1, 5, 7), A: Place(3, 0, 1, 1_200)})


def test_an_offset_is_written_in_one_way() -> None:
    text = json.dumps(OFFSET.to_json())
    assert text == json.dumps(Offset("audit", {A: Place(3, 0, 1, 1_200), B: Place(9, 1, 5, 7)}).to_json())
    assert json.loads(text) == {
        "c": "audit",
        "e": {"orders@aa": 3, "x@y@bb": 9},
        "f": {"orders@aa": 1, "x@y@bb": 5},
        "n": {"orders@aa": 0, "x@y@bb": 1},
        "p": {"orders@aa": 1_200, "x@y@bb": 7},
        "v": 1,
    }
    assert Offset.of(json.loads(text), "audit") == OFFSET
    assert json.dumps(Offset.of(json.loads(text), "audit").to_json()) == text


def test_a_partition_is_a_queue_and_a_node() -> None:
    assert parts_of(B) == ("x@y", "bb")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"c": "other"}, "'other', of which the checkpoint has the place"),
        ({"v": 2}, "offsets of version 1 or older"),
        ({"v": "x"}, "a checkpoint of a meshq source"),
        ({"v": None}, "a checkpoint of a meshq source"),
        ({"p": {"orders@zz": 1}}, "a checkpoint that is whole"),
        ({"e": 5}, "a checkpoint that is whole"),
    ],
)
def test_an_offset_that_is_not_ours(change: dict[str, object], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        Offset.of(OFFSET.to_json() | change, "audit")


def test_ranges_between_two_offsets() -> None:
    end = OFFSET.moved({A: 1_300})
    assert ranges_between(OFFSET, end) == {A: (1_200, 1_300)}
    assert ranges_between(OFFSET, OFFSET) == {}
    # A partition that is new begins where its cursor did.
    new = Offset("audit", {A: OFFSET.places[A]})
    assert ranges_between(new, OFFSET) == {B: (5, 7)}


def test_words_and_json_of_bounds() -> None:
    assert bounds_of("startingOffsets", "Latest").at("q", "n") == "latest"
    assert bounds_of("endingOffsets", "latest").at("q", "n") == "latest"
    bounds = bounds_of("startingOffsets", '{"q@n": 12, "q": -1, "r": -2}')
    assert [bounds.at(*place) for place in (("q", "n"), ("q", "m"), ("r", "n"), ("s", "n"))] == [
        12,
        "latest",
        "earliest",
        "earliest",
    ]
    bounds.check_known({"q@n": 1, "r@n": 1})
    with pytest.raises(SettingsError, match="partitions and queues that are read: q, q@n"):
        bounds.check_known({"q@n": 1})


@pytest.mark.parametrize(
    ("option", "text", "match"),
    [
        ("startingOffsets", "first", "earliest, latest, or JSON"),
        ("startingOffsets", "[]", "earliest, latest, or JSON"),
        ("startingOffsets", "{}", "earliest, latest, or JSON"),
        ("startingOffsets", '{"q@n": 0}', "a sequence from 1, -2"),
        ("startingOffsets", '{"q@n": "1"}', "a sequence from 1, -2"),
        ("startingOffsets", '{"q": 5}', "a sequence is of queue@node"),
        ("endingOffsets", "earliest", "latest, or JSON"),
        ("endingOffsets", '{"q": -2}', "or -1"),
    ],
)
def test_bounds_that_are_not_allowed(option: str, text: str, match: str) -> None:
    with pytest.raises(SettingsError, match=match) as caught:
        bounds_of(option, text)
    assert caught.value.setting.startswith(option)
