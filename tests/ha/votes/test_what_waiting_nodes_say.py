"""A node of a pair that waits for votes, or for the other node, says so: in its log, and as its last error."""

from __future__ import annotations

import pytest
import trio

from meshq import MajorityVote, MeshqError, Message, ReplicationBackup, ReplicationPrimary
from tests.ha.replicated import machines, url_of
from tests.ha.voted import voting_machines


@pytest.mark.slow
async def test_nodes_that_lose_a_vote_say_how_many_were_needed_and_what_they_do_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    once = MajorityVote(vote_retries=1, vote_retry_wait=1.0, quorum_vote_wait=1.0)
    async with voting_machines("cd") as (ground, nursery):
        first, second = await ground.form(nursery, once)
        assert (first.ha.last_error, second.ha.last_error) == ("", "")
        async with ground.talker("a", call_timeout=3) as near:
            for one in "ab":
                ground.part(one, *"ab".replace(one, ""), "d")
            with pytest.raises(MeshqError):
                await near.send("q", Message(b"held"))
            await second.ha.wait_for(phase="voting", timeout=60)
            await trio.sleep(10)
            lost = "1 of the 2 votes needed (2 asked)"
            held = f"'a' confirms nothing until it has won a vote, and has lost one: {lost}"
            assert (first.ha.phase, first.ha.last_error) == ("active", held)
            assert second.ha.last_error == "'b' asks for votes no more, after 2: it waits for 'a'"
            said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert "'a' confirms nothing until 'b', which it has lost, answers, or a vote is won" in said
            assert held in said and second.ha.last_error in said
            assert any(text.startswith("'b' takes over when it has won a vote, and has lost one: ") for text in said)
            ground.network.heal()
            await second.ha.wait_for(phase="in_sync", timeout=120)
            assert (first.ha.last_error, second.ha.last_error) == ("", "")


async def test_a_backup_says_for_whom_it_waits_and_a_node_without_a_policy_is_no_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with machines() as (ground, nursery):
        await ground.start(nursery, ground.broker("c", None))
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
        await trio.sleep(2)
        asked = f"it has asked {url_of('a')}, {url_of('c')}"
        assert second.ha.last_error == f"'b' waits for a node that serves; {asked}"
        assert "does not serve this role" not in caplog.text
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        await second.ha.wait_for(phase="in_sync", timeout=60)
        assert (first.ha.last_error, second.ha.last_error) == ("", "")
        await ground.crash(second)
        await first.stop()
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
        await trio.sleep(2)
        assert second.ha.last_error == f"'b' waits for 'a'; {asked}"


async def test_an_error_of_the_other_node_is_told_with_its_url() -> None:
    async with machines() as (ground, nursery):
        await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        second = ground.broker("b", ReplicationBackup(), cluster={"password": "another"})
        await ground.start(nursery, second)
        await trio.sleep(2)
        assert second.ha.last_error.startswith("SecurityError: ") and url_of("a") in second.ha.last_error
