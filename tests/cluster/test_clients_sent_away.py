"""Clients of a node that leaves for good: told where to go, and let in there when everything is there."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from meshq import (
    Client,
    ConnectionBrokenError,
    Disconnected,
    FailedOver,
    MeshqError,
    ScaledDown,
    TopologyChanged,
)
from meshq.client import ConnectionEvent
from meshq.client.calls._session_facts import SessionFacts
from meshq.cluster.gate._handover_gate_machine import GRACE_S
from meshq.cluster.leaving._drain import STEP
from meshq.node._transfer import LocalTransfer
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import bodies, until
from tests.cluster.test_client_topology import LINKS, factory_of, node_of


@asynccontextmanager
async def nodes_of(names: str = "ab", **settings: Any) -> AsyncIterator[Hosts]:
    """Nodes that know each other, each with the queue ``q``."""
    async with hosts(names, cluster=LINKS, broker={"queues": ["q"]}, **settings) as nodes:
        await nodes.joined()
        yield nodes


#: More than one step of a drain moves.
MANY = [b"%d" % number for number in range(STEP + 44)]


class Seen(list[ConnectionEvent]):
    """The events of a client, without those of its cluster."""

    async def watch(self, client: Client) -> None:
        async for event in client.events():
            if not isinstance(event, TopologyChanged):
                self.append(event)

    @property
    def kinds(self) -> list[type[ConnectionEvent]]:
        return [type(event) for event in self]


async def drain(nodes: Hosts, target: str = "b", name: str = "a") -> None:
    async with nodes.brokers[name].drain(target):
        pass


def part(nodes: Hosts, one: str = "a", other: str = "b") -> None:
    """Keep two nodes from each other, so that nothing is handed over."""
    nodes.network.partition([one], [other])


def held_back(nodes: Hosts, name: str = "b") -> int:
    return nodes.brokers[name]._node.sessions.held_back


def brake(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Have a drain move one step, and the rest when the event is set."""
    go, move, moves = trio.Event(), LocalTransfer.move, itertools.count()

    async def late(self: LocalTransfer, *about: Any) -> int:
        if next(moves):
            await go.wait()
        return await move(self, *about)

    monkeypatch.setattr(LocalTransfer, "move", late)
    return go


async def test_a_client_is_told_the_target_and_goes_on_there_with_its_consumer_and_its_messages() -> None:
    async with nodes_of() as nodes, factory_of(nodes).connect() as client, client.consumer("q") as consumer:
        seen = Seen()
        nodes.nursery.start_soon(seen.watch, client)
        await client.send("q", b"first")
        first = await consumer.receive(timeout=5)
        await drain(nodes)
        again = await consumer.receive(timeout=5)
        assert node_of(client) == "b"
        assert first is not None and again is not None and (again.body, again.redelivered) == (b"first", True)
        await again.ack()
        await client.send("q", b"second")
        assert [one.body for one in await consumer.receive_many(9, timeout=5)] == [b"second"]
        assert seen.kinds == [ScaledDown, Disconnected, FailedOver]
        told = seen[0]
        assert isinstance(told, ScaledDown)
        assert (told.target.name, told.target.primary, told.code) == ("b", "tcp://b:5000", "scaled_down")
        assert told.target.node_id == bytes(nodes.brokers["b"].node_id).hex()
        assert [event.failed_over for event in seen] == [None, None, True]


@pytest.mark.slow
async def test_a_client_is_let_in_when_the_last_message_has_moved_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last_may_move = brake(monkeypatch)
    async with nodes_of() as nodes, factory_of(nodes).connect() as client:
        await client.send_many("q", MANY)
        nodes.nursery.start_soon(drain, nodes)
        await trio.sleep(GRACE_S + 5)
        assert not node_of(client) and held_back(nodes) > 10
        async with nodes.dial("b") as other:
            # All others are served meanwhile.
            await other.send("r", b"x")
            assert 0 < (await other.queue("q")).ready < len(MANY)
        last_may_move.set()
        await until(lambda: node_of(client) == "b")
        departure = nodes.known("a").departure
        assert departure is not None and departure.broker.transfer.inventory().empty
        assert (await client.queue("q")).ready == len(MANY)


@pytest.mark.slow
async def test_a_third_node_does_not_let_the_client_in_either(monkeypatch: pytest.MonkeyPatch) -> None:
    last_may_move = brake(monkeypatch)
    async with nodes_of("abc") as nodes, factory_of(nodes, "a").connect() as client:
        await client.send_many("q", MANY)
        nodes.nursery.start_soon(drain, nodes)
        await until(lambda: not node_of(client))
        nodes.network.partition(["shop"], ["b"])
        await trio.sleep(GRACE_S + 5)
        assert not node_of(client) and held_back(nodes, "c") > 0
        last_may_move.set()
        nodes.network.heal()
        await until(lambda: node_of(client) == "b")


@pytest.mark.slow
async def test_a_target_that_only_listens_lets_the_client_in_when_the_node_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last_may_move = brake(monkeypatch)
    one_way = {**LINKS, "allow_direct_connections_only": True}
    async with hosts("ab", cluster=one_way, broker={"queues": ["q"]}, others={"b": []}) as nodes:
        await nodes.known("a").wait_for(nodes=2)
        async with factory_of(nodes).connect() as client:
            await client.send_many("q", MANY)
            nodes.nursery.start_soon(_failing_drain, nodes)
            await trio.sleep(GRACE_S + 5)
            assert not node_of(client) and held_back(nodes) > 10
            last_may_move.set()
            await until(lambda: nodes.brokers["a"].statistics().ready == 0)
            await nodes.brokers["a"].stop()
            await until(lambda: node_of(client) == "b")
            assert (await client.queue("q")).ready == len(MANY)


@pytest.mark.slow
async def test_attempts_that_are_used_up_before_it_is_complete_end_the_client_as_disconnected() -> None:
    async with nodes_of() as nodes:
        seen = Seen()
        with pytest.raises(ConnectionBrokenError, match="hands over to another node") as raised:
            async with factory_of(nodes, reconnect_attempts=3).connect() as client:
                nodes.nursery.start_soon(seen.watch, client)
                await client.send("q", b"x")
                nodes.nursery.start_soon(drain, nodes)
                await until(lambda: not node_of(client))
                part(nodes)
                await client.send("q", b"y")
        assert raised.value.outcome == "not_done"
        assert seen.kinds == [ScaledDown, Disconnected, Disconnected]
        assert [event.failed_over for event in seen] == [None, None, False]
        assert held_back(nodes) == 3


@pytest.mark.slow
async def test_an_unconfirmed_send_with_a_duplicate_id_is_there_once() -> None:
    async with nodes_of() as nodes, factory_of(nodes).connect() as client:
        await client.send("q", b"x")
        core = nodes.brokers["a"]._node.core
        # It is stored, and its confirm is lost.
        nodes.nursery.start_soon(_sent, client, b"once")
        await until(lambda: "once" in str(core.router.addresses["q"].duplicates.known()))
        nodes.network.partition(["shop"], ["a"])
        await drain(nodes)
        nodes.network.heal()
        await until(lambda: node_of(client) == "b")
        await client.send("q", b"last")
        assert bodies(await nodes.drain("b")) == [b"x", b"once", b"last"]


async def _sent(client: Client, body: bytes) -> None:
    await client.send("q", body, duplicate_id=body.decode())


@pytest.mark.slow
async def test_a_source_that_has_died_keeps_the_gate_closed_for_so_long_only() -> None:
    async with nodes_of() as nodes, factory_of(nodes).connect() as client:
        await client.send("q", b"x")
        nodes.nursery.start_soon(_failing_drain, nodes)
        await until(lambda: not node_of(client))
        part(nodes)
        await nodes.crash("a")
        nodes.network.heal()
        await trio.sleep(GRACE_S / 2)
        assert not node_of(client)
        await until(lambda: node_of(client) == "b")
        assert nodes.known("b")._topology._gate.given_up == 1


async def _failing_drain(nodes: Hosts) -> None:
    with suppress(MeshqError):
        await drain(nodes)


@pytest.mark.slow
async def test_a_client_goes_back_to_a_source_that_serves_again() -> None:
    async with nodes_of() as nodes, factory_of(nodes).connect() as client:
        await client.send("q", b"x")
        nodes.nursery.start_soon(_failing_drain, nodes)
        await until(lambda: not node_of(client))
        part(nodes)
        await nodes.crash("a")
        await nodes.start("a")
        nodes.network.heal()
        await until(lambda: node_of(client) == "a")
        await drain(nodes)
        await until(lambda: node_of(client) == "b")
        assert bodies(await nodes.drain("b")) == [b"x"]


async def test_a_source_that_stops_without_having_handed_all_over_opens_the_gate() -> None:
    async with nodes_of() as nodes, factory_of(nodes).connect() as client:
        await client.send("q", b"x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_failing_drain, nodes)
            await until(lambda: not node_of(client))
            await nodes.stop("a")
        began = trio.current_time()
        await until(lambda: node_of(client) == "b")
        assert trio.current_time() - began < GRACE_S / 2


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_target_that_was_restarted_lets_the_client_in_when_everything_is_there(when: str) -> None:
    async with nodes_of() as nodes, factory_of(nodes, reconnect_attempts=float("inf")).connect() as client:
        await client.send("q", b"x")
        if when == "before":
            nodes.nursery.start_soon(drain, nodes)
            await until(lambda: not node_of(client))
            nodes.network.partition(["shop"], ["b"])
            part(nodes)
            await trio.sleep(1)
        else:
            nodes.network.partition(["shop"], ["b"])
            await drain(nodes)
            await nodes.stop("a")
        await nodes.crash("b")
        await nodes.start("b")
        nodes.network.heal()
        await until(lambda: node_of(client) == "b")
        assert bodies(await nodes.drain("b")) == [b"x"]


async def test_a_client_without_topology_goes_to_the_target_if_its_url_lists_it() -> None:
    listed: dict[str, Any] = {"use_topology": False, "load_balancing": "first_element"}
    async with nodes_of("abc") as nodes, factory_of(nodes, "acb", **listed).connect() as client:
        assert node_of(client) == "a"
        await drain(nodes)
        await until(lambda: node_of(client) == "b")


async def test_a_client_of_an_older_version_is_let_in_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionFacts, "came_from", lambda self, node_id: b"")
    async with nodes_of() as nodes, factory_of(nodes).connect() as client:
        await client.send("q", b"x")
        nodes.nursery.start_soon(drain, nodes)
        await until(lambda: not node_of(client))
        part(nodes)
        await until(lambda: node_of(client) == "b")
        assert held_back(nodes) == 0


async def test_a_client_in_the_process_of_the_node_is_told_too() -> None:
    async with nodes_of() as nodes:
        seen = Seen()
        with pytest.raises(ConnectionBrokenError):
            async with nodes.client("a") as client:
                nodes.nursery.start_soon(seen.watch, client)
                await client.send("q", b"x")
                await drain(nodes)
                await trio.sleep_forever()
        assert seen.kinds[0] is ScaledDown


async def test_a_stop_that_scales_down_sends_its_clients_to_the_target() -> None:
    async with nodes_of() as nodes, factory_of(nodes).connect() as client, client.consumer("q") as consumer:
        seen = Seen()
        nodes.nursery.start_soon(seen.watch, client)
        await nodes.brokers["a"].stop(scale_down=True)
        await until(lambda: node_of(client) == "b")
        await client.send("q", b"x")
        got = await consumer.receive(timeout=5)
        assert got is not None and got.body == b"x"
        assert seen.kinds == [ScaledDown, Disconnected, FailedOver]


@pytest.mark.parametrize("operation", ["commit", "rollback"])
async def test_a_client_that_was_sent_away_decides_at_the_target_what_it_has_prepared(operation: str) -> None:
    async with nodes_of() as nodes, factory_of(nodes).connect() as client:
        async with client.transaction(xid=b"x") as transaction:
            await transaction.send("q", b"prepared")
            await transaction.prepare()
        await drain(nodes)
        assert await client.recover() == [b"x"]
        await getattr(client, operation)(b"x")
        await getattr(client, operation)(b"x")
        assert await client.recover() == []
        assert (await client.queue("q")).ready == (operation == "commit")
