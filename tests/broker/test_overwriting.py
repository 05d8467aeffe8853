"""A batch that takes the place of what waits at an address: by one decision, over crashes."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.broker.kit import House, RawClient, make_house
from tests.broker.staging import Staged, bodies, commit, left, next_life, refusal, said, start
from tests.broker.test_access import client_of, house_with, outcome
from tests.broker.test_cursors import opened
from tests.broker.test_delays import late


def overwrite(client: RawClient, batch: int, *stages: int, purge: str = "q") -> dict[str, Any]:
    """Commit a batch that replaces what is there; return the answer."""
    packed = struct.pack(f"<{len(stages)}I", *stages)
    values = client.call("commit_batch", sink="s", batch=batch, stages=packed, purge=purge)
    if client.house.auto:
        client.house.rest()
    return values or {}


def replaced() -> tuple[House, RawClient, int]:
    """A queue with two old messages, and one that is not due; a prepared stage with the two that replace these."""
    house, client = start()
    sender = client.produce()
    client.put(sender, b"old", b"older")
    client.put(sender, b"later", envelopes=late(60_000))
    part = Staged(client)
    part.send("q", b"a", b"b")
    return house, client, part.prepare()


def test_a_batch_takes_the_place_of_what_waits_and_of_nothing_else() -> None:
    house, client, stage = replaced()
    client.put(client.produce("other", producer=b"another producer"), b"stays")
    reader = client.consume(window=1)
    assert client.bodies(reader) == [b"old"]
    assert overwrite(client, 0, stage) == {"already": False, "messages": 2}
    # What a consumer has stays its own.
    assert bodies(house.core) == [b"old", b"a", b"b"] and bodies(house.core, "other") == [b"stays"]
    client.leave(reader)
    assert not house.queue().scheduled and house.core.transactions.stages.ledger.sinks["s"][0].purge == ""
    # The same batch again purges nothing, a batch without the word adds, and an empty one leaves nothing.
    assert overwrite(client, 0, stage)["already"]
    assert commit(client, 1)["messages"] == 0 and bodies(house.core) == [b"old", b"a", b"b"]
    assert overwrite(client, 2, purge="nowhere") == {"already": False, "messages": 0}
    assert overwrite(client, 3, purge="q::q") == {"already": False, "messages": 0} and bodies(house.core) == []
    house.check()


def test_at_each_cut_of_the_journal_the_old_or_the_new_is_there() -> None:
    house, client, stage = replaced()
    prepared = house.log.last
    overwrite(client, 0, stage)
    client.put(client.produce(producer=b"another producer"), b"after")
    outcomes = set()
    for cut in range(prepared, house.log.last + 1):
        later, again = next_life(house, cut)
        found, delayed = bodies(later.core), len(later.queue().scheduled)
        outcomes.add((*found, delayed))
        if found[:1] == [b"old"]:
            assert left(later.core) == {stage: "prepared"}
            assert overwrite(again, 0, stage)["messages"] == 2
        assert set(bodies(later.core)) - {b"after"} == {b"a", b"b"} and not later.queue().scheduled
        assert left(later.core) == {} and not later.core.transactions.stages.ledger.unpurged
        later.check()
    assert outcomes == {(b"old", b"older", 1), (b"a", b"b", 0), (b"a", b"b", b"after", 0)}


def half_purged() -> tuple[House, RawClient]:
    """A life that begins behind a decision whose purge was cut off, before a second has passed."""
    house, client, stage = replaced()
    decided = house.log.last + 1
    overwrite(client, 0, stage)
    log = house.log.after_crash(decided)
    house = make_house(log, records=log.recovered())
    return house, house.client()


def test_what_comes_before_an_interrupted_purge_goes_on_stays() -> None:
    house, client = half_purged()
    assert len(house.queue().scheduled) == 1 and house.core.transactions.stages.watched
    client.put(client.produce(producer=b"another producer"), b"new")
    assert bodies(house.core) == [b"old", b"older", b"new"]
    # Until then the sink takes no further batch, and is not forgotten.
    assert overwrite(client, 1) == {} and refusal(client) == "batch_placing"
    client.call("delete_sink", sink="s")
    assert "still being purged" in said(client)
    house.core.second_passed()
    house.rest()
    assert bodies(house.core) == [b"new", b"a", b"b"] and not house.queue().scheduled
    assert overwrite(client, 1)["already"] is False and bodies(house.core) == []
    house.check()


def test_a_cursor_is_purged_by_nobody_before_a_decision_or_after_it() -> None:
    house, client, stage = replaced()
    opened(client)
    assert overwrite(client, 0, stage) == {} and "nothing is overwritten before its owner" in said(client)
    assert bodies(house.core) == [b"old", b"older"] and left(house.core) == {stage: "prepared"}
    house, client = half_purged()
    opened(client)
    house.core.second_passed()
    house.rest()
    assert bodies(house.core) == [b"old", b"older"] and set(left(house.core).values()) == {"placing"}
    client.call("delete_cursor", queue="q", name="c")
    house.core.second_passed()
    house.rest()
    assert bodies(house.core) == [b"a", b"b"]


@pytest.mark.parametrize(("purge", "match"), [("a::", "purge"), ("$meshq.x", "broker's own")])
def test_what_can_not_be_overwritten(purge: str, match: str) -> None:
    house, client, stage = replaced()
    assert overwrite(client, 0, stage, purge=purge) == {} and match in said(client)
    assert bodies(house.core) == [b"old", b"older"] and left(house.core) == {stage: "prepared"}


@pytest.mark.parametrize("user", ["writer", "reader", "boss"])
def test_a_batch_takes_the_place_of_others_only_where_one_may_manage(user: str) -> None:
    house = house_with("q")
    before = house.log.last
    client = client_of(house, user)
    client.call("commit_batch", sink="new", batch=0, stages=b"", purge="q")
    assert ("manage" in outcome(client)) is (house.log.last == before) is (user != "boss")
