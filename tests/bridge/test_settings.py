"""Settings of a bridge, by what they do while it carries."""

from __future__ import annotations

import pytest
import trio

from meshq.message import Message
from tests.bridge.kit import bridge_of, bridge_to, numbered, until, world


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_message_stays_as_durable_as_it_is(monkeypatch: pytest.MonkeyPatch, large: bool, durable: bool) -> None:
    if large:
        # What is over the bound of an ordinary message is streamed, which is a way of its own.
        monkeypatch.setattr("meshq.bridge._carrying_plan.is_large", lambda delivery: True)
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far"))
        await made.send("near", "out", [Message(b"1", durable=durable)])
        async with made.dial("far") as client, client.consumer("in") as consumer:
            delivery = await consumer.receive()
            assert delivery is not None and (delivery.body, delivery.durable) == (b"1", durable)


async def test_a_filter_leaves_the_others_where_they_are() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", filter="n > 2"))
        await made.send("near", "out", [Message(b"%d" % n, properties={"n": n}) for n in range(6)])
        assert await made.drain("far", "in") == numbered(3, 3)
        assert await made.drain("near", "out") == numbered(3)


async def test_without_a_forwarding_address_messages_keep_theirs() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", forwarding_address=None))
        await made.send("near", "out", [b"1"])
        assert await made.drain("far", "out") == [b"1"]


async def test_a_bridge_waits_between_its_attempts_to_connect_and_goes_on_after_the_last() -> None:
    dials: list[float] = []
    async with world() as made:
        settings = {"retry_interval": 10, "max_retry_interval": 10, "initial_connect_attempts": 2}
        await made.start("near", bridge_to("far", **settings))
        host = made.brokers["near"]._env
        assert host is not None
        network = host.network
        connect = network.connect

        async def counted(*arguments: object, **named: object) -> object:
            dials.append(trio.current_time())
            return await connect(*arguments, **named)  # type: ignore[arg-type]

        network.connect = counted  # type: ignore[method-assign,assignment]
        await trio.sleep(100)
        # Two attempts, and then two again: with the interval between all of them.
        assert 8 <= len(dials) <= 11
        await made.start("far")
        await made.send("near", "out", [b"1"])
        assert await made.drain("far", "in", quiet=60) == [b"1"]
        assert str(bridge_of(made.brokers["near"]).statistics().last_error)


async def test_a_silent_target_is_given_up_after_its_time_to_live() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", check_period=1, connection_ttl=3))
        await made.send("near", "out", [b"1"])
        await until(lambda: bridge_of(made.brokers["near"]).statistics().carried == 1)
        made.network.silence("near", "far")
        await made.send("near", "out", [b"2"])
        # Another connection is well, once the silent one is given up.
        with trio.fail_after(20):
            await until(lambda: bridge_of(made.brokers["near"]).statistics().carried == 2)
        assert await made.drain("far", "in") == [b"1", b"2"]
