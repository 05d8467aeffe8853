"""Two cluster connections of one broker that share messages to the same addresses, and to which."""

from __future__ import annotations

import pytest

from meshq.cluster._overlaps import overlap
from meshq.cluster._settings import ClusterSettings


def found(*addresses: str) -> str | None:
    first, second = [ClusterSettings(name="a", connector="me", address=address) for address in addresses]
    return overlap(first, second)


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
    assert found(one, other) == found(other, one) == shared
