"""A node that has lost its memory, and is asked by the hosted backup that serves for it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication.meeting._standpoints import CLAIMED, serves_on
from meshq.ha.replication.places import KnownPlace
from meshq.wire import Log, Replicate

PLACE, BEFORE = "tcp://backup:1", "tcp://before:1"
ASKS = Replicate(node_id=b"n" * 16, instance=b"i" * 16, node_name="x", place=PLACE, host="tcp://host:1", epoch=2)
SERVES = attrs.evolve(ASKS, acts=True, asks=True)


def known(standing: Standing, node_id: bytes = b"n" * 16) -> KnownPlace:
    """The place that a node knows whose disk is left out."""

    async def change(_: Any) -> bool:
        return True

    return KnownPlace(lambda: standing, change, lambda: node_id)


def test_a_node_asks_from_where_a_hosted_backup_that_serves_for_it_has_asked_and_remembers_it_as_it_follows() -> None:
    standing = Standing(epoch=1, acted=True, place=BEFORE)
    place = known(standing)
    place.hear(SERVES)
    assert place.urls == (BEFORE, PLACE)
    assert place.before(PLACE) == attrs.evolve(standing, place=PLACE)
    assert place.before(BEFORE) == place.before("tcp://other:1") == standing


@pytest.mark.parametrize(
    "asked",
    [
        ASKS,
        attrs.evolve(SERVES, node_id=b"m" * 16),
        attrs.evolve(SERVES, node_id=b""),
        attrs.evolve(SERVES, host=""),
        attrs.evolve(SERVES, place=""),
        attrs.evolve(SERVES, epoch=CLAIMED),
    ],
    ids=["waits", "of another node", "of no node", "not hosted", "nowhere", "about to act"],
)
def test_a_node_that_does_not_serve_in_its_place_tells_it_nothing(asked: Replicate) -> None:
    place = known(Standing(epoch=1))
    place.hear(asked)
    assert place.urls == ()


def test_a_backup_in_an_older_term_or_of_a_node_without_an_id_tells_nothing() -> None:
    for place in (known(Standing(epoch=3)), known(Standing(epoch=1, named=3)), known(Standing(), b"")):
        place.hear(SERVES)
        assert place.urls == ()


async def test_another_replica_that_comes_in_sync_ends_what_was_heard() -> None:
    place = known(Standing())
    place.hear(SERVES)
    await place.keep(attrs.evolve(ASKS, host="", place=BEFORE), lambda: True, lambda _: None)
    assert place.urls == ()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({}, True),
        ({"epoch": 3}, True),
        # A copy that was served later has another epoch, whatever its id.
        ({"journal_id": b"k" * 16, "epoch": 3}, True),
        ({"journal_id": b"k" * 16}, False),
        ({"journal_id": b"k" * 16, "epoch": 1}, False),
        ({"node_id": b"m" * 16}, False),
    ],
)
def test_a_node_that_serves_another_store_in_no_later_term_is_not_the_one_that_was_followed(
    answer: dict[str, Any], expected: bool
) -> None:
    log = Log(kind="accepted", **{"node_id": b"n" * 16, "journal_id": b"j" * 16, "epoch": 2, **answer})
    assert serves_on(log, b"n" * 16, b"j" * 16, 2) is expected
