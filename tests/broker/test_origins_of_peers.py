"""The origin of moved messages, as another node may say it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshq import MessageOrigin
from tests.broker.peers import peer_of
from tests.broker.test_peering import all_bodies, house_with_queue, refusal


@pytest.mark.parametrize(
    "origin",
    [
        ("a",),
        ("a", "b", "moved", "moved"),
        ("", "q", "moved"),
        ("a", "", "moved"),
        ("a", "b", ""),
        ("a", "a::", "expired"),
        ("a", "b::c", "expired"),
        ("a", "a::b::c", "expired"),
        ("a\0b", "q", "moved"),
        ("a", "q" * 3000, "moved"),
        ("a", "b", "m" * 33),
        ("$meshq.cluster.mesh.there", "$meshq.cluster.mesh.there", "moved"),
    ],
)
def test_an_origin_that_no_moved_message_has_is_refused(origin: Sequence[str]) -> None:
    house = house_with_queue()
    peer = peer_of(house)
    peer.forward(peer.open(), 1, b"x", origin=origin)
    assert refusal(peer) == "bad_header"
    assert all_bodies(house) == []


@pytest.mark.parametrize("reason", ["moved", "of_a_later_version"])
def test_an_origin_stays_with_its_message(reason: str) -> None:
    assert _kept(("$temporary.a", "q", reason)) == MessageOrigin("$temporary.a", "q", reason)


def test_the_origin_of_a_message_of_a_subscription_stays_with_it() -> None:
    assert _kept(("news", "news::archive", "expired")) == MessageOrigin("news", "news::archive", "expired")


def _kept(origin: Sequence[str]) -> MessageOrigin | None:
    house = house_with_queue()
    peer = peer_of(house)
    peer.forward(peer.open(), 1, b"x", origin=origin)
    (view,) = house.core.router.queues["q"].all_runs()
    assert view.run.options is not None
    return view.run.options.origin
