"""Where a message would go, and where one is, asked over the network, in process and from a thread."""

from __future__ import annotations

import pytest

from meshq import Broker, MessageId, MessageOrigin, SettingsError, connect


async def test_a_route_is_explained_alike_to_a_client_and_in_process() -> None:
    async with (
        Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as client,
    ):
        await client.create_queue("all", address="news", routing="multicast")
        await client.create_queue("emea", address="news", routing="multicast", filter="region = 'emea'")
        for number in range(60):
            await client.create_queue(f"more-{number:02}", address="news", routing="multicast")
        await client.create_divert("copies", address="news", forwarding_address="archive", filter="region = 'emea'")
        route = await client.explain_route("news", {"region": "us"})
        assert route == broker.explain_route("news", {"region": "us"})
        assert (route.routing, route.exists, route.creates, route.permitted) == ("multicast", True, False, True)
        assert len(route.steps) == 63 and not route.nowhere
        divert, first, second = route.steps[:3]
        assert (divert.kind, divert.gets, divert.filter) == ("divert", "no", "region = 'emea'")
        assert (first.name, first.gets, first.filter) == ("all", "yes", None)
        assert (second.name, second.gets, second.why) == ("emea", "no", "its filter does not accept the message")
        assert [step.gets for step in (await client.explain_route("news")).steps[:3]] == ["maybe", "yes", "maybe"]
        assert (await client.explain_route("new")).creates and not (await client.explain_route("new")).nowhere
        by_group = await client.explain_route("news", group="g", priority=9, durable=False)
        assert by_group.steps[2].gets == "no"
        for wrong in ({"a": object()}, {"a": "x" * 3_000}):
            with pytest.raises(SettingsError, match="properties"):
                await client.explain_route("news", wrong)  # type: ignore[arg-type]


async def test_a_message_is_found_where_it_is() -> None:
    async with (
        Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as client,
    ):
        await client.send("orders", b"42 umbrellas")
        async with client.consumer("orders") as consumer:
            message = await consumer.receive(timeout=10)
            assert message is not None
            (location,) = (await client.trace(message.message_id)).locations
            assert (location.queue, location.state, location.origin) == ("orders", "delivering", None)
            assert location.session == client.statistics().session
        assert (await client.trace(message.message_id)).locations[0].state == "ready"
        await client.move_messages("orders", "later")
        (location,) = (await client.trace(message.message_id)).locations
        assert location.queue == "later" and location.origin == MessageOrigin("orders", "orders", "moved")
        await client.purge_queue("later")
        gone = await client.trace(message.message_id)
        assert gone.accepted and gone.locations == () and gone.message_id == message.message_id
        assert not (await client.trace(MessageId(bytes(16), 1))).accepted
        with pytest.raises(SettingsError, match="message_id="):
            await client.trace("7")  # type: ignore[arg-type]
