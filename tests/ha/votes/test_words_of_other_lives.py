"""A node that served last believes only the life of its replica that it knows, also after it was started again."""

from __future__ import annotations

import pytest

from meshq import ReplicationBackup, ReplicationPrimary
from tests.ha.voted import voting_machines
from tests.ha.votes.test_pairs_with_votes import QUICK, serving

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("again", [False, True])
async def test_the_word_of_another_life_of_the_replica_lets_no_node_serve_without_a_vote(again: bool) -> None:
    async with voting_machines("c") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK, vote_on_replication_failure=not again)
        for name in "ab":
            ground.part(name, "c")
        await ground.crash(second)
        await ground.run(nursery, "b", ReplicationBackup(quorum=QUICK))
        if again:
            await ground.crash(first)
            first = await ground.run(nursery, "a", ReplicationPrimary(quorum=QUICK, wait_for_activation=False))
        await first.ha.wait_for(phase="isolated", timeout=60)
        with pytest.raises(TimeoutError):
            await first.ha.wait_for(phase="active", timeout=10)
        assert serving(ground) == []
        ground.network.heal()
        await first.ha.wait_for(phase="active", timeout=60)
