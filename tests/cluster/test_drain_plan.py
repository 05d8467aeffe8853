"""The steps of a drain, from what is left and how the target is."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import MeshqError, RefusedError
from meshq.abc import TransferInventory
from meshq.cluster.leaving._drain_plan import PATIENCE_S, STUCK_S, DrainFacts, next_step

LEFT = TransferInventory(messages={"q": 3}, forwarded={}, ids={}, prepared=0)
EMPTY = TransferInventory(messages={}, forwarded={}, ids={}, prepared=0)

UNDECIDED = TransferInventory(messages={"q": 3}, forwarded={}, ids={}, prepared=1)


def facts(**changes: Any) -> DrainFacts:
    values: dict[str, Any] = {
        "left": LEFT,
        "lacking": (),
        "xids": (),
        "taken": True,
        "label": "node b",
        "target": "linked",
        "leaving": False,
        "ahead": 0,
        "moved": 0,
        "idle_s": 0.0,
        "patience_s": float("inf"),
        "unheard": (),
    }
    return DrainFacts(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"moved": 1}, "go_on"),
        ({"left": EMPTY}, "end"),
        ({"left": EMPTY, "lacking": ("q",), "ahead": 1}, "wait"),
        ({"left": EMPTY, "unheard": ("c",)}, "wait"),
        ({"left": EMPTY, "unheard": ("c",), "idle_s": PATIENCE_S}, "end"),
        ({"target": "away", "ahead": 2, "idle_s": 1_000.0}, "wait"),
        ({"target": "left", "ahead": 2}, "choose"),
        ({"target": "left"}, "choose"),
        ({"target": "down"}, "choose"),
        ({"target": "down", "ahead": 2}, "wait"),
        ({"leaving": True}, "wait"),
        ({"idle_s": STUCK_S / 2}, "wait"),
        ({"idle_s": PATIENCE_S - 1, "full": "no room"}, "wait"),
        ({"idle_s": PATIENCE_S - 1, "left": UNDECIDED, "xids": (b"x",)}, "wait"),
    ],
)
def test_the_next_step_follows_from_what_is_left_and_how_the_target_is(changes: dict[str, Any], step: str) -> None:
    assert next_step(facts(**changes)) == step


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"idle_s": STUCK_S}, "left are 3 of 'q': node b can't take this"),
        ({"idle_s": PATIENCE_S, "left": UNDECIDED, "xids": (b"x",)}, "78: node b can't take this, or another node has"),
        ({"idle_s": PATIENCE_S, "full": "no room here"}, "left are 3 of 'q': no room here"),
        ({"target": "down", "ahead": 2, "idle_s": PATIENCE_S}, "node b is down, and may have some of the 2 messages"),
        ({"target": "away", "ahead": 2, "idle_s": 5.0, "patience_s": 5.0}, "node b does not answer"),
        ({"leaving": True, "idle_s": PATIENCE_S}, "node b leaves, too"),
    ],
)
def test_a_drain_that_can_not_go_on_says_what_is_left_and_why(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError, match=named):
        next_step(facts(**changes))


def test_prepared_transactions_that_an_older_target_does_not_take_are_named() -> None:
    left = TransferInventory(messages={}, forwarded={}, ids={}, prepared=1)
    with pytest.raises(MeshqError, match="6f6e65"):
        next_step(facts(left=left, xids=(b"one",), taken=False))
