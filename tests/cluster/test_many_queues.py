"""A node that describes more queues than are known of one node."""

from __future__ import annotations

import logging

import pytest
import trio

from tests.cluster.kit import Mesh, mesh
from tests.cluster.test_nodes import create, numbered, settled


async def test_of_a_node_with_more_queues_than_are_known_the_others_get_nothing_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshq.cluster._described_queues.QUEUES_MAX", 3)
    names = [f"q{number}" for number in range(6)]

    async def shared(nodes: Mesh, queues: list[str]) -> dict[str, list[int]]:
        for queue in queues:
            await nodes.send("a", numbered(10), address=queue)
        left = await settled(nodes, "a", "b")
        return {queue: [left.get(f"{node}/{queue}", 0) for node in "ab"] for queue in queues}

    async with mesh("ab", root="simulated", mode="strict") as nodes:
        for queue in names[:5]:
            await create(nodes, "a", "b", queue=queue)
        await nodes.joined("a", "b")
        halves, alone = [5, 5], [10, 0]
        assert list((await shared(nodes, names[:5])).values()) == [halves, halves, halves, alone, alone]
        assert [getattr(one, "event", "") for one in caplog.records if one.levelno >= logging.WARNING] == [
            "peer_queues"
        ] * 2
        # Those that were left out go without a trace, and one that is known makes room for one that comes.
        async with nodes.client("b") as client:
            await client.delete_queue("q4")
            await client.delete_queue("q1")
        await create(nodes, "a", "b", queue="q5")
        await trio.sleep(1)
        assert await shared(nodes, ["q3", "q5"]) == {"q3": [20, 0], "q5": halves}
    assert "node b at" in caplog.text and "more than 3 queues" in caplog.text
