"""Administration, statistics and events, over every face."""

from __future__ import annotations

import threading

import pytest

from meshq import (
    AddressSettings,
    Bridge,
    CallTimeoutError,
    ClosedError,
    ClusterConnection,
    ConnectionBrokenError,
    MessageId,
    NotActiveError,
    NotFoundError,
    Permissions,
    Security,
    SecurityError,
    SettingsError,
    UsageError,
)
from meshq.client import Connected, Disconnected
from tests.node.test_services import PausedService
from tests.real.faces.kit import ACCEPTORS, WAIT_S, Face, TrioFace, promise, received


@promise
async def test_queues_are_created_listed_purged_and_deleted(face: Face) -> None:
    async with face.clients() as (client, other):
        await client.create_address("news", routing="multicast")
        await client.create_queue("a", address="news", routing="multicast")
        await other.create_queue("b", address="news", routing="multicast", durable=False)
        await client.create_queue("small", filter="size < 2")
        await other.send("news", b"x")
        await other.send_many("small", [b"1", b"22"])
        assert await client.queues() == ["a", "b", "small"]
        assert (await client.queue("small")).ready == 1
        assert await client.purge_queue("a") == 1
        await client.delete_queue("a")
        with pytest.raises(NotFoundError) as caught:
            await other.queue("a")
        assert caught.value.outcome == "not_done" and caught.value.code == "not_found"
        with pytest.raises(UsageError):
            await client.create_queue("b")
        name = await client.create_temporary_queue()
        assert (await other.queue(name)).temporary


@promise
async def test_a_paused_queue_delivers_nothing_until_it_is_resumed(face: Face) -> None:
    async with face.clients() as (client, other), client.consumer("q", ack="auto") as consumer:
        await other.pause_queue("q")
        await other.send("q", b"x")
        assert (await client.queue("q")).paused
        assert await consumer.receive(timeout=0.02) is None
        await other.resume_queue("q")
        assert (await received(consumer)).body == b"x"
        assert not (await client.queue("q")).paused


@promise
async def test_messages_are_moved_and_sent_back(face: Face) -> None:
    async with face.clients() as (client, other):
        for number in range(4):
            await other.send("q", b"%d" % number, properties={"n": number})
        assert await client.move_messages("q", "later", filter="n > 0", limit=2) == 2
        assert ((await other.queue("q")).ready, (await other.queue("later")).ready) == (2, 2)
        assert await client.redrive("later") == 2
        assert (await other.queue("q")).ready == 4
        with pytest.raises(SettingsError):
            await client.move_messages("q", "later", limit=0)
        with pytest.raises(NotFoundError):
            await client.give_back("0" * 32)


@promise
async def test_address_settings_are_set_looked_up_and_removed(face: Face) -> None:
    async with face.clients() as (client, other):
        await client.set_address_settings("orders.#", AddressSettings(max_delivery_attempts=3))
        assert (await other.address_settings("orders.emea")).max_delivery_attempts == 3
        await client.remove_address_settings("orders.#")
        assert (await other.address_settings("orders.emea")).max_delivery_attempts == 10
        with pytest.raises(NotFoundError):
            await client.remove_address_settings("orders.#")


@promise
async def test_diverts_are_created_listed_and_deleted(face: Face) -> None:
    async with face.clients() as (client, other):
        await client.create_divert("copies", address="q", forwarding_address="archive", filter="n = 1")
        (divert,) = await other.diverts()
        assert (divert.name, divert.address, divert.forwarding_address) == ("copies", "q", "archive")
        await other.send("q", b"x", properties={"n": 1})
        assert ((await client.queue("q")).ready, (await client.queue("archive")).ready) == (1, 1)
        await client.delete_divert("copies")
        assert await other.diverts() == []


@promise
async def test_a_message_is_found_and_its_way_is_explained(face: Face) -> None:
    async with face.broker() as broker, face.client(broker) as client:
        await client.create_queue("orders")
        route = await client.explain_route("orders", {"n": 1}, priority=9)
        assert route.steps == broker.explain_route("orders", {"n": 1}).steps != ()
        await client.send("orders", b"x")
        async with client.consumer("orders") as consumer:
            delivery = await received(consumer)
            (location,) = (await client.trace(delivery.message_id)).locations
            assert (location.queue, location.state) == ("orders", "delivering")
        assert (await client.trace(MessageId(bytes(16), 1))).locations == ()
        (queue,) = (await client.cluster_queue("orders")).nodes
        assert (queue.state, queue.known, queue.exists) == ("here", "answered", True)
        assert await client.stuck() == []


@promise
async def test_a_broker_is_watched_and_asked(face: Face) -> None:
    bridge = Bridge("copy", queue="from", target="tcp://127.0.0.1:1")
    broker = face.broker("hq", services=[bridge], queues=["from"])
    assert (broker.name, broker.state, broker.durable) == ("hq", "new", False)
    events = broker.events()
    for early in (broker.statistics, lambda: broker.node_id, lambda: broker.explain_route("q")):
        with pytest.raises(NotActiveError):
            early()
    async with broker, face.client(broker) as client:
        assert (broker.state, len(broker.urls)) == ("active", int(face.tcp))
        assert len(str(broker.node_id)) == 32
        await client.create_queue("orders")
        assert (await client.broker()).queues == broker.statistics().queues == 2
        assert [one.name for one in await client.bridges()] == ["copy"]
        await client.pause_bridge("copy")
        assert (await client.bridges())[0].state == "paused"
        await client.resume_bridge("copy")
        with pytest.raises(NotFoundError):
            await client.pause_bridge("none")
        with pytest.raises(NotFoundError):
            broker.cluster("none")
        kinds = []
        while "queue_created" not in kinds[1:] or kinds[-1] != "queue_created":
            kinds.append((await anext(events)).kind)
    assert kinds[0] == "broker_state_changed"
    assert [event.kind async for event in events][-1] == "broker_state_changed"
    assert broker.state == "stopped"
    with pytest.raises(NotActiveError):
        broker.statistics()


@promise
async def test_a_service_is_found_by_name_and_kind_and_called_in_the_loop_of_its_broker(face: Face) -> None:
    paused = PausedService("out")
    async with face.broker(services=[paused]) as broker:
        with pytest.raises(NotFoundError, match="no service 'in'; known: 'out'"):
            broker.service("in")
        with pytest.raises(NotFoundError):
            broker.service("out", kind="bridge")
        service = broker.service("out", kind="clock")
        assert (service.name, service.kind) == ("out", "clock")
        service.pause()
        service.resume()
        assert service.statistics().name == "out"
    assert [call for call, _ in paused.calls] == ["pause", "resume", "statistics"]
    here = type(face) is TrioFace
    assert {thread == threading.get_ident() for _, thread in paused.calls} == {here}


@promise
async def test_a_cluster_connection_is_asked_and_waited_for(face: Face) -> None:
    mesh = ClusterConnection("mesh", connector="me", user="cluster", password="a password")
    async with face.broker(connectors={"me": "tcp://127.0.0.1:1"}, services=[mesh]) as broker:
        connection = broker.cluster("mesh")
        await connection.wait_for(nodes=1, timeout=WAIT_S)
        assert (connection.name, connection.nodes(), connection.consumers("q")) == ("mesh", 1, 0)
        assert connection.peers() == [] and repr(connection).startswith("<ClusterConnection 'mesh'")
        with pytest.raises(CallTimeoutError) as caught:
            await connection.wait_for(nodes=2, timeout=0.02)
        assert caught.value.outcome == "not_done"
        with pytest.raises(SettingsError):
            await connection.wait_for(nodes=0)
        with pytest.raises(NotFoundError):
            broker.cluster("other")


@promise
async def test_events_and_statistics_tell_what_happens_to_the_connection(face: Face) -> None:
    async with face.broker() as broker:
        client = face.client(broker, reconnect_attempts=0)
        assert client.statistics().state == "new"
        events = client.events()
        async with client:
            event = await anext(events)
            assert type(event) is Connected and event.code == "connected"
            assert repr(client).startswith("<Client connected peer=")
            assert client.statistics().state == "connected"
            assert broker.statistics().sessions == 1
            async with client.session() as another:
                await another.send("q", b"x")
                assert another.statistics().session != client.statistics().session
        assert [type(event) for event in [one async for one in events]] == []
        assert [event async for event in client.events()] == []
        assert client.statistics().state == "closed"


@promise
async def test_a_client_whose_broker_stops_for_good_ends_with_one_error(face: Face) -> None:
    async with face.broker() as broker:
        client = face.client(broker, reconnect_attempts=0)
        events = client.events()
        with pytest.raises(ConnectionBrokenError):
            async with client:
                await broker.stop()
                while True:
                    await client.send("q", b"x")
                    await face.pause()
        seen = [type(event) async for event in events]
        assert seen[0] is Connected and seen[-1] is Disconnected
        with pytest.raises((ConnectionBrokenError, ClosedError)):
            await client.queues()


@promise
async def test_what_the_body_of_a_block_raises_leaves_it_as_it_was(face: Face) -> None:
    error = ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as caught:
        async with face.clients() as (client, _), client.producer("q") as producer, client.consumer("q"):
            await producer.send(b"x")
            raise error
    assert caught.value is error


@promise
async def test_who_lacks_a_permission_is_refused_by_name(face: Face) -> None:
    security = Security(
        users={"shop": "secret"},
        roles={"shop": {"sellers"}},
        permissions={"#": Permissions(send={"sellers"}, create={"sellers"})},
    )
    async with face.broker(security=security, acceptors=ACCEPTORS) as broker:
        async with face.connected(broker.urls[0], user="shop", password="secret") as shop:
            await shop.send("q", b"x")
            with pytest.raises(SecurityError, match="'manage'") as caught:
                await shop.delete_queue("q")
            assert caught.value.outcome == "not_done"
        with pytest.raises(SecurityError, match="the authentication failed"):
            async with face.connected(broker.urls[0], user="shop", password="wrong"):
                pytest.fail("it was entered")
