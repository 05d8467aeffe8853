"""Settings of a bridge, by what they do while it carries."""

from __future__ import annotations

import pytest
import trio

from meshq import Bridge, Broker, SessionCreated, SettingsError
from meshq.message import Message
from tests.bridge.kit import URL, bridge_of, bridge_to, numbered, until, world
from tests.bridge.test_refusals import SECURITY


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_message_stays_as_durable_as_it_is(monkeypatch: pytest.MonkeyPatch, large: bool, durable: bool) -> None:
    if large:
        # What is over the bound of an ordinary message is streamed, which is a way of its own.
        monkeypatch.setattr("meshq.bridge._forwarding_plan.is_large", lambda delivery: True)
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
        assert "attempts to connect are used up" in str(bridge_of(made.brokers["near"]).statistics().last_error)


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


async def test_a_bridge_whose_attempts_after_a_loss_are_used_up_begins_again_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", reconnect_attempts=2, check_period=1, connection_ttl=3))
        await made.send("near", "out", [b"1"])
        assert await made.drain("far", "in") == [b"1"]
        await made.kill("far")
        await made.send("near", "out", [b"2"])
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: "attempts" in str(bridge.statistics().last_error))
        # Nobody was there to refuse anything.
        assert (bridge.statistics().refused, bridge.statistics().state) == (0, "connecting")
        await made.start("far")
        assert await made.drain("far", "in") == [b"2"]
    texts = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "bridge_broken"]
    assert texts and all("the bridge b begins again" in text and "attempts" in text for text in texts)


async def test_a_target_knows_a_bridge_by_its_name() -> None:
    async with world() as made:
        far = await made.start("far")
        events = far.events()
        await made.start("near", bridge_to("far", "carrier"))
        await made.send("near", "out", [b"1"])
        await until(lambda: bridge_of(made.brokers["near"]).statistics().carried == 1)
        await made.stop("far")
        assert "carrier" in [event.label async for event in events if isinstance(event, SessionCreated)]


async def test_a_login_may_stand_in_the_url_of_the_target() -> None:
    async with world() as made:
        await made.start("far", security=SECURITY, queues=["in"])
        await made.start("near", bridge_to(URL.format("far") + "&user=b", password="secret"))
        await made.send("near", "out", [b"1"])
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().carried == 1)
        assert "far:5000" in bridge.statistics().target and "user" not in bridge.statistics().target


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"speed": 3}, r"speed='\*\*\*' is not allowed; allowed: one of .*window.*, user, password, tls"),
        ({"window": 10, "pasword": "secret"}, r"pasword='\*\*\*'"),
        ({"window": 0}, "window=0"),
        ({"window": 1_000_000}, "window"),
        ({"filter": "n >"}, "filter"),
        ({"transformer": 3}, "transformer=3.*a function"),
        ({"queue": ""}, "queue"),
        ({"forwarding_address": ""}, "forwarding_address"),
        ({"use_duplicate_detection": 1}, "use_duplicate_detection"),
        ({"retry_interval": 0}, "retry_interval"),
        ({"retry_interval": 86_401}, "retry_interval"),
        ({"retry_interval_multiplier": 0.5}, "retry_interval_multiplier"),
        ({"max_retry_interval": 0}, "max_retry_interval"),
        ({"initial_connect_attempts": 0}, "initial_connect_attempts"),
        ({"reconnect_attempts": 1.5}, "reconnect_attempts"),
        ({"check_period": 0}, "check_period"),
        ({"connection_ttl": 0}, "connection_ttl"),
        ({"call_timeout": 0}, "call_timeout"),
        ({"call_failover_timeout": 0}, "call_failover_timeout"),
        ({"confirmation_window_size": 4_095}, "confirmation_window_size"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named) as told:
        Bridge("b", **{"queue": "out", "target": "tcp://127.0.0.1:1", **settings})  # type: ignore[arg-type]
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("target", "connectors", "named"),
    [
        ("nobody", {}, "nobody.*connectors: none$"),
        ("nobody", {"one": "inproc://x", "two": "inproc://y"}, "nobody.*connectors: one, two$"),
        ("ftp://127.0.0.1:21", {}, "ftp"),
        ("wrong", {"wrong": "ftp://127.0.0.1:21"}, "ftp"),
    ],
)
async def test_a_target_that_is_none_is_refused_when_the_broker_starts(
    target: str, connectors: dict[str, str], named: str
) -> None:
    bridge = Bridge("b", queue="out", target=target)
    with pytest.raises(SettingsError, match=named):
        async with Broker("near", data_dir=None, services=[bridge], connectors=connectors):
            pytest.fail("it started")


async def test_a_target_may_be_the_name_of_a_connector() -> None:
    async with world() as made:
        await made.start("far")

        def bridges() -> list[Bridge]:
            return [Bridge("b", queue="out", target="there", forwarding_address="in")]

        await made.start("near", bridges, connectors={"there": URL.format("far"), "other": "inproc://nobody"})
        await made.send("near", "out", [b"1"])
        assert await made.drain("far", "in") == [b"1"]
