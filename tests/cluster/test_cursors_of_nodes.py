"""A queue of a cluster that a cursor has on one node: nothing of it goes to other nodes, and that is said."""

from __future__ import annotations

import logging

import pytest
import trio

from meshq import AddressSettings, Message
from tests.cluster.test_clustered_groups import body_of_next, group_of, grouping, grouping_of
from tests.cluster.test_stuck import FOUND_S, causes, pair


async def test_what_a_cursor_has_is_not_given_to_consumers_elsewhere_and_the_cause_is_told() -> None:
    async with pair() as made, made.brokers["a"].client() as here, made.brokers["b"].client() as there:
        await made.send("a", "q", 3)
        async with there.consumer("q") as consumer:
            async with here.cursor("q", "audit"):
                await trio.sleep(FOUND_S)
                assert causes(made) == [("q", "no_redistribution")]
                (stuck,) = made.known("a").stuck()
                assert "the cursor 'audit'" in stuck.why
            await here.delete_cursor("q", "audit")
            assert await consumer.receive(timeout=FOUND_S) is not None


async def test_a_group_that_another_node_holds_stays_with_the_cursor(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"queues": ["q"], "address_settings": {"q": AddressSettings(redistribution_delay=0.0)}}
    async with grouping("ab", broker=settings) as nodes, nodes.client("a") as here, nodes.client("b") as there:
        group, groups = group_of(nodes, "a"), grouping_of(nodes, "a")._groups
        await here.send("q", Message(b"1", group=group))
        async with here.cursor("q", "audit"):
            pass
        async with there.consumer("q") as consumer:
            await nodes.joined(queue="q", consumers=1)
            groups.ask("q", group)
            groups.told("q", group, bytes(nodes.brokers["b"].node_id).hex())
            with caplog.at_level(logging.WARNING):
                assert await consumer.receive(timeout=5) is None
            assert not [record for record in caplog.records if "stay for now" in record.getMessage()]
            async with here.cursor("q", "audit") as cursor:
                assert await cursor.holes(1, await cursor.high_mark()) == []
            await here.delete_cursor("q", "audit")
            assert await body_of_next(consumer) == b"1"
