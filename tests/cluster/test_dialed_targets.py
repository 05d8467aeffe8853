"""Drains to a target that is dialed for them: cut by crashes, and what clients see of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from meshq import (
    Disconnected,
    FailedOver,
    MeshqError,
    ScaledDown,
)
from meshq.cluster.gate._handover_gate_machine import GRACE_S
from tests.cluster.kit import bodies, until
from tests.cluster.machines import Machines, machines, mesh, place
from tests.cluster.test_client_topology import FAST, factory_of, node_of
from tests.cluster.test_clients_sent_away import MANY, Seen, brake, held_back
from tests.cluster.test_transfer import numbered, taken

# -- crashes


async def under_way(nodes: Machines, count: int = 600, url: str = place("b")) -> None:
    """Have some of the messages of ``a`` wait for ``b``, and others in their queue, by a drain that is cut."""
    await nodes.send("a", numbered(count))
    nodes.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, nodes, url)
        core = nodes.brokers["a"]._node.core
        await until(
            lambda: any(
                name.startswith("$meshq") and one.counts.ready + one.counts.unacked
                for name, one in core.router.queues.items()
            )
        )
        nursery.cancel_scope.cancel()


async def _drain(nodes: Machines, url: str = place("b")) -> None:
    async with nodes.brokers["a"].drain(url):
        pass


PAIR: dict[str, Any] = {
    "a": lambda: {"services": [mesh()]},
    "b": lambda: {"services": [mesh(name="b")]},
}


@pytest.mark.parametrize("dies", ["a", "b", "ab"])
async def test_a_drain_that_a_crash_cuts_goes_on_in_the_next_life_and_each_message_is_there_once(dies: str) -> None:
    async with machines("ab", parts=PAIR) as nodes:
        await under_way(nodes)
        for name in "ab":
            if name in dies or name == "b":
                nodes.lose_power(name)
                await nodes.ended(name)
        await nodes.start(*("ab" if "a" in dies else "b"))
        await _drain(nodes)
        assert (await nodes.ready()) == {"a": 0, "b": 600}
        assert bodies(await taken(nodes, "b")) == numbered(600)


async def test_what_is_under_way_arrives_in_the_next_life_also_without_another_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brake(monkeypatch)
    async with machines("ab", parts=PAIR) as nodes:
        await under_way(nodes)
        for name in "ab":
            nodes.lose_power(name)
            await nodes.ended(name)
        await nodes.start("a", "b")
        core = nodes.brokers["a"]._node.core
        await until(
            lambda: (
                not any(
                    one.counts.ready + one.counts.unacked
                    for name, one in core.router.queues.items()
                    if name.startswith("$meshq")
                )
            )
        )
        there, here = bodies(await taken(nodes, "b")), bodies(await taken(nodes, "a"))
        assert there and here and there + here == numbered(600)
        await nodes.stop("a")
        # Nothing waits there any more: the next life dials nobody.
        await nodes.start("a")
        assert nodes.linked("a") == []


async def test_a_drain_goes_on_at_the_link_at_which_messages_wait_also_if_it_finds_another_one_to_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest_may_move = brake(monkeypatch)
    parts = {"a": lambda: {"services": [mesh("b")]}, "b": lambda: {"services": [mesh("a")]}}
    async with machines("ab", parts=parts) as nodes:
        await nodes.known("a").wait_for(nodes=2)
        await under_way(nodes, url=f"({place('b')[:12]})?insecure=true")
        await nodes.crash("b")
        router = nodes.brokers["a"]._node.core.router
        (begun,) = [queue for name, queue in router.queues.items() if name.startswith("$meshq.cluster.$handover.")]
        await nodes.start("b")
        await nodes.known("a").wait_for(nodes=2)
        # That link is there again, too, and what waits at it has not arrived yet.
        with trio.fail_after(10):
            while not begun.counts.unacked:
                assert begun.counts.ready
                await trio.sleep(0.0001)
        rest_may_move.set()
        async with nodes.brokers["a"].drain("b") as drain:
            assert router.by_number[drain._target.link.number].name.startswith("$meshq.cluster.$handover.")
        assert bodies(await taken(nodes, "b")) == numbered(600)


async def test_a_drain_goes_on_at_the_link_at_which_a_transaction_was_begun_also_if_nothing_waits_there() -> None:
    parts = {"a": lambda: {"services": [mesh("b")]}, "b": lambda: {"services": [mesh("a")]}}
    async with machines("ab", parts=parts) as nodes:
        await nodes.known("a").wait_for(nodes=2)
        await nodes.send("a", numbered(10))
        async with nodes.client("a") as client, client.consumer("q", window=3) as consumer:
            transaction = await client.transaction(xid=b"x").__aenter__()
            await transaction.ack(*await consumer.receive_many(3, timeout=5))
            await transaction.prepare()
        departure = nodes.known("a").departure
        assert departure is not None
        link, transfer = departure.successors()[0].link, departure.broker.transfer
        assert not transfer.has_begun(link)
        assert await transfer.hand_over(b"x", link) == 1
        await until(lambda: not link.waiting)
        assert transfer.has_begun(link)
        # The same node by another URL, to which another link would be dialed.
        async with nodes.brokers["a"].drain(f"({place('b')[:12]})?insecure=true") as drain:
            assert drain._target.link.number == link.number
        assert (drain.state, drain.left) == ("transferred", 0)
        async with nodes.client("b") as client:
            assert await client.recover() == [b"x"]
            await client.rollback(b"x")
        assert bodies(await taken(nodes, "b")) == numbered(10)


async def test_a_life_that_may_not_dial_what_an_earlier_one_did_keeps_what_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with machines("ab", parts={**PAIR}) as nodes:
        await under_way(nodes)
        for name in "ab":
            nodes.lose_power(name)
            await nodes.ended(name)
        made = nodes.parts.pop("a")
        await nodes.start("a", "b")
        assert "stays until that is dialed again" in caplog.text and nodes.linked("a") == []
        await nodes.kill("a")
        nodes.parts["a"] = made
        await nodes.start("a")
        await _drain(nodes)
        assert bodies(await taken(nodes, "b")) == numbered(600)


# -- clients


def clients_of(*names: str) -> dict[str, Any]:
    """Return the parts of nodes of which each is in a cluster of its own, and which notice a lost link soon."""

    def parts(name: str) -> Any:
        return lambda: {"services": [mesh(name=name, **FAST)]}

    return {name: parts(name) for name in names}


async def test_clients_are_told_of_a_target_beyond_the_cluster_and_go_on_there() -> None:
    async with machines("ab", parts=clients_of("a", "b")) as nodes, factory_of(nodes).connect() as client:
        seen = Seen()
        nodes.nursery.start_soon(seen.watch, client)
        await client.send("q", b"first")
        await _drain(nodes)
        await client.send("q", b"second")
        assert node_of(client) == "b" and seen.kinds == [ScaledDown, Disconnected, FailedOver]
        assert bodies(await taken(nodes, "b")) == [b"first", b"second"]


@pytest.mark.slow
async def test_clients_are_let_in_there_when_everything_is_there_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last_may_move = brake(monkeypatch)
    async with machines("ab", parts=clients_of("a", "b")) as nodes, factory_of(nodes).connect() as client:
        await client.send_many("q", MANY)
        nodes.nursery.start_soon(_drain, nodes)
        await trio.sleep(GRACE_S + 5)
        assert not node_of(client) and held_back(nodes) > 10
        last_may_move.set()
        await until(lambda: node_of(client) == "b")
        assert (await nodes.ready()) == {"a": 0, "b": len(MANY)}


@pytest.mark.slow
async def test_a_node_that_dies_on_the_way_keeps_its_clients_out_of_the_target_for_so_long_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brake(monkeypatch)
    async with machines("ab", parts=clients_of("a", "b")) as nodes, factory_of(nodes).connect() as client:
        await client.send_many("q", MANY)
        nodes.nursery.start_soon(_failing_drain, nodes)
        await until(lambda: not node_of(client))
        await trio.sleep(1)
        await nodes.crash("a")
        await trio.sleep(GRACE_S / 2)
        assert not node_of(client)
        await until(lambda: node_of(client) == "b")
        topology = nodes.brokers["b"].cluster("b")._topology
        assert topology is not None and topology._gate.given_up == 1


async def _failing_drain(nodes: Machines) -> None:
    with suppress(MeshqError):
        await _drain(nodes)
