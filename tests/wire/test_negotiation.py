"""Agreeing on a version: the newest that both know, or a refusal that names both ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq.errors import RemoteProtocolError
from meshq.wire import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, Hello, agree
from meshq.wire import _negotiation as negotiation


@pytest.mark.parametrize(("oldest", "newest"), [(1, 1), (0, 1), (1, 2), (1, 1_000), (0, 9)])
def test_a_client_that_knows_this_version_among_others_is_agreed_to_it(oldest: int, newest: int) -> None:
    assert agree(Hello(oldest=oldest, newest=newest)) == (1, ())


@pytest.mark.parametrize(("oldest", "newest"), [(0, 0), (2, 2), (2, 1_000)])
def test_a_client_without_a_common_version_is_refused_and_both_ranges_are_named(oldest: int, newest: int) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        agree(Hello(oldest=oldest, newest=newest))
    assert caught.value.refusal == "no_common_version"
    assert f"{oldest}-{newest}" in str(caught.value)
    assert f"{PROTOCOL_VERSION_MIN}-{PROTOCOL_VERSION}" in str(caught.value)


def test_versions_that_are_no_range_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="2-1 are not a range") as caught:
        agree(Hello(oldest=2, newest=1))
    assert caught.value.refusal == "bad_header"


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_both_sides_get_the_newest_version_that_both_know(
    theirs_from: int, theirs_more: int, ours_from: int, ours_more: int
) -> None:
    theirs = range(theirs_from, theirs_from + theirs_more + 1)
    ours = range(ours_from, ours_from + ours_more + 1)
    common = [version for version in theirs if version in ours]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(negotiation, "PROTOCOL_VERSION_MIN", ours[0])
        patch.setattr(negotiation, "PROTOCOL_VERSION", ours[-1])
        hello = Hello(oldest=theirs[0], newest=theirs[-1])
        if common:
            assert agree(hello)[0] == max(common)
        else:
            with pytest.raises(RemoteProtocolError, match=f"{theirs[0]}-{theirs[-1]}.*{ours[0]}-{ours[-1]}"):
                agree(hello)


def test_features_are_those_that_both_know_in_the_clients_order() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(negotiation, "FEATURES", ("a", "b", "c"))
        assert agree(Hello(oldest=1, newest=1, features=("c", "x", "a"))) == (1, ("c", "a"))
    assert agree(Hello(oldest=1, newest=1, features=("c", "x", "a"))) == (1, ())
