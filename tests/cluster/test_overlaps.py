"""Cluster connections of one broker that share messages to the same addresses: which two, and to which addresses."""

from __future__ import annotations

import pytest

from meshq.cluster._overlaps import overlaps
from meshq.cluster._settings import ClusterSettings


def found(*addresses: str) -> list[tuple[str, str, str]]:
    """Overlaps of connections that are named by letters."""
    given = zip("abcdef", addresses, strict=False)
    return overlaps([ClusterSettings(name=name, connector="me", address=address) for name, address in given])


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("", "", ""),
        ("", "eu", "eu"),
        ("eu", "eu", "eu"),
        ("eu", "eu.uk", "eu.uk"),
        ("eu", "europe", "europe"),
        ("eu", "us", None),
        ("eu.uk", "eu.de", None),
        # One begins like the other only further on, or not at its beginning.
        ("eu.uk.london", "eu.de,eu.uk", "eu.uk.london"),
        ("de,eu", "uk,us,eu.de", "eu.de"),
        ("a.eu", "eu", None),
        # What one of them leaves out is not shared.
        ("!eu", "eu", None),
        ("!eu", "eu.uk", None),
        ("!eu.uk", "eu", "eu"),
        ("eu,!eu.uk", "eu.uk", None),
        ("eu,!eu.uk", "eu.uk,eu.de", "eu.de"),
        ("us,eu,!eu", "eu", None),
    ],
)
def test_two_overlap_where_both_take_an_address(one: str, other: str, shared: str | None) -> None:
    assert found(one, other) == ([("a", "b", shared)] if shared is not None else [])
    assert found(other, one) == ([("a", "b", shared)] if shared is not None else [])


def test_each_two_are_named_in_their_order() -> None:
    assert found() == found("eu") == found("eu", "us", "de") == []
    assert found("eu", "us", "eu.uk", "us.x") == [("a", "c", "eu.uk"), ("b", "d", "us.x")]
    assert found("eu", "eu", "eu") == [("a", "b", "eu"), ("a", "c", "eu"), ("b", "c", "eu")]
