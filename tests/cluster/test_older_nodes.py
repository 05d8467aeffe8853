"""A node that comes back as an older version: it is told nothing that it does not understand."""

from __future__ import annotations

import pytest

from meshq import Message
from tests.cluster.kit import Mesh, bodies, until
from tests.cluster.test_transfer import inside, moved_before, nodes_with_queues, numbered, taken, to

FEATURES = "meshq.broker.session._peering.LINK_FEATURES"

pytestmark = pytest.mark.slow


async def test_a_node_that_comes_back_as_one_that_understands_no_origins_is_sent_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes_with_queues() as nodes:
        await moved_before(nodes)
        nodes.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
        assert await inside(nodes).transfer.move("q", to(nodes), 600) == 600
        await nodes.kill("b")
        await until(lambda: nodes.known("a").peers()[0].state != "linked")
        monkeypatch.setattr(FEATURES, "counts due queue ids")
        await nodes.start("b")
        await nodes.joined()
        found = await taken(nodes, "b")
        assert bodies(found) == numbered(600)
        assert [one.origin for one in found] == [None] * 600
    told = [one for one in caplog.records if getattr(one, "event", "") == "peer_without_origins"]
    assert len(told) == 1 and "node b at" in told[0].getMessage()


async def came_back(nodes: Mesh, monkeypatch: pytest.MonkeyPatch, features: str) -> None:
    """Have the node ``b`` come back with other features, until it was found to be older twice."""
    await nodes.kill("b")
    await until(lambda: nodes.known("a").peers()[0].state != "linked")
    monkeypatch.setattr(FEATURES, features)
    await nodes.start("b")
    await until(lambda: nodes.known("a").bridges()[0].refused > 1)


async def test_what_a_node_that_comes_back_older_does_not_understand_waits_and_all_can_see_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(6))
        nodes.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
        assert await inside(nodes).transfer.move("q", to(nodes), 600) == 6
        await came_back(nodes, monkeypatch, "origin counts due ids")
        (bridge,), (peer,) = nodes.known("a").bridges(), nodes.known("a").peers()
        assert bridge.state == "waiting" and bridge.last_error is not None
        assert "does not understand what waits for it (queue)" in bridge.last_error
        assert peer.error is not None and peer.state == "away" and peer.waiting == 6
        await nodes.kill("b")
        monkeypatch.setattr(FEATURES, "origin counts due queue ids")
        await nodes.start("b")
        await nodes.joined()
        assert bodies(await taken(nodes, "b")) == numbered(6)
    told = [one for one in caplog.records if getattr(one, "event", "") == "peer_too_old"]
    assert len(told) == 1 and "node b at" in told[0].getMessage()


async def test_what_waits_for_a_node_that_came_back_older_can_be_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes_with_queues() as nodes, nodes.client("a") as client:
        await client.send("q", Message(b"first", duplicate_id="d"))
        nodes.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
        assert await inside(nodes).transfer.move("q", to(nodes), 600) == 1
        assert await inside(nodes).transfer.move_ids("q", to(nodes)) == 1
        await came_back(nodes, monkeypatch, "origin")
        last = nodes.known("a").bridges()[0].last_error
        assert last is not None and "(ids, queue)" in last
        assert await client.give_back(nodes.forward("b").rpartition(".")[2], force=True) == 1
        await nodes.joined()
        assert bodies(await taken(nodes, "a")) == [b"first"]
