"""Errors show the value that was wrong, or its type where it may be of a message; never the one as the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshq import Message
from meshq.client.send._send_batches import cut_into_runs
from meshq.errors import SettingsError
from meshq.message import check_body, check_duplicate_id, check_properties, check_text
from meshq.selector import parse_filter

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "body": (lambda: check_body("a secret"), "body=<str> is not allowed; allowed: bytes or something like bytes"),
    "large": (lambda: check_body(bytes(1 << 25)), "body=<33554432 bytes> is not allowed"),
    "id": (lambda: check_duplicate_id(5), "duplicate_id=5 (int) is not allowed"),
    "empty id": (lambda: check_duplicate_id(""), "duplicate_id='' (str) is not allowed"),
    "long id": (lambda: check_duplicate_id("x" * 5000), "duplicate_id=<5000 bytes> is not allowed"),
    "text": (lambda: check_text("group", 5), "group=5 (int) is not allowed; allowed: str"),
    "properties": (lambda: check_properties([1]), "properties=<list> is not allowed; allowed: a mapping"),
    "name": (lambda: check_properties({1: 2}), "properties=<the name 1 (int)> is not allowed"),
    "value": (lambda: check_properties({"a": {}}), "properties['a']=<dict> is not allowed"),
    "json": (lambda: Message.json({1, 2}), "value=<set> is not allowed"),
    "filter": (lambda: parse_filter(5), "filter=5 (int) is not allowed"),
    "messages": (lambda: cut_into_runs(b"abc", None, 0, None), "messages=<bytes> is not"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_a_value_of_a_wrong_type_is_shown_with_its_type_or_as_its_type(what: str) -> None:
    call, text = WRONG[what]
    with pytest.raises(SettingsError) as caught:
        call()
    assert str(caught.value).startswith(text)
    assert "secret" not in str(caught.value)


class Unshown:
    """An object whose ``repr`` fails."""

    def __repr__(self) -> str:
        raise RuntimeError("not today")


@pytest.mark.parametrize("value", ["x" * 100_000, b"x" * 100_000, list(range(100_000)), 10**4000, Unshown()])
def test_a_long_value_is_shortened_and_one_that_can_not_be_shown_does_no_harm(value: object) -> None:
    text = str(SettingsError("name", value, "a short one"))
    assert len(text) < 400
    assert text.startswith("name=") and text.endswith("is not allowed; allowed: a short one")
