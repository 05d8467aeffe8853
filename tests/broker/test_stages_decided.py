"""Decisions about batches of stages that come close together, late, or between two lives of a node."""

from __future__ import annotations

from meshq.broker.stages._stage_life import PLACING
from tests.broker.staging import Staged, bodies, commit, left, start


def test_empty_batches_are_committed_before_the_sync_of_the_one_before() -> None:
    house, client = start()
    part = Staged(client, 1, batch=2)
    part.send("q", b"a")
    stage = part.prepare()
    house.auto = False
    for batch in (0, 1):
        commit(client, batch)
    between = house.log.last
    commit(client, 2, stage)
    house.log.sync(between)
    assert left(house.core) == {stage: PLACING} and bodies(house.core) == [], "batch 2 is not durable"
    house.rest()
    assert bodies(house.core) == [b"a"] and left(house.core) == {}
    # Nor does an entry that is forgotten and written anew meanwhile confuse the node.
    for _ in range(2):
        client.call("delete_sink", sink="s")
        commit(client, 0)
    house.rest()
    assert house.core.transactions.stages.ledger.sinks["s"][0].batch == 0
