"""A name with a wildcard as a word is refused wherever messages are sent, taken or kept: nobody means it literally."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from meshq import Bridge, Broker, Client, SettingsError, UsageError
from tests.node.lives import lives

WILD = ["*", "#", "a.*", "a.#", "*.a", "a.*.b", "news::*", "#::desk", "a.#.b::c"]
#: Where these stand within a word they are characters like any other.
TAME = ["a*", "c#", "a.b*c", "#1", "**", "a.##"]


async def transaction(client: Client, name: str) -> None:
    """Send in one."""
    async with client.transaction() as transaction:
        await transaction.send(name, b"x")


async def consume(client: Client, name: str, **settings: Any) -> None:
    """Take what is there."""
    async with client.consumer(name, **settings) as consumer:
        await consumer.receive(timeout=0)


async def handler(delivery: object) -> None:
    """Do nothing."""


async def produce(client: Client, name: str) -> None:
    """Send through a producer."""
    async with client.producer(name) as producer:
        await producer.send(b"x")


CALLS: dict[str, Callable[[Client, str], Awaitable[object]]] = {
    "send": lambda client, name: client.send(name, b"x"),
    "send_many": lambda client, name: client.send_many(name, [b"x"]),
    "large": lambda client, name: client.send(name, bytes(200_000)),
    "request": lambda client, name: client.request(name, b"x", timeout=1),
    "producer": produce,
    "transaction": transaction,
    "consumer": consume,
    "browse": lambda client, name: consume(client, name, browse=True),
    "serve": lambda client, name: client.serve(name, handler),
    "move_messages": lambda client, name: client.move_messages("from", name),
    "explain_route": lambda client, name: client.explain_route(name),
    "create_queue": lambda client, name: client.create_queue(name),
    "create_address": lambda client, name: client.create_address(name, routing="multicast"),
}
ONE_NAME = frozenset({"create_queue", "create_address", "move_messages"})
#: What may find a queue of an earlier version: the node says no where it would have to make one.
ASKS = frozenset({"consumer", "browse", "serve"})


@pytest.mark.parametrize("call", CALLS)
async def test_a_wildcard_is_refused_by_name_and_nothing_is_made(call: str) -> None:
    async with lives() as node, node.client() as client:
        for name in WILD:
            with pytest.raises(UsageError) as caught:
                await CALLS[call](client, name)
            assert f"={name!r} is not allowed" in str(caught.value)
            assert isinstance(caught.value, SettingsError) is (call not in ASKS)
            if call not in ONE_NAME or "::" not in name:
                assert "the wildcards '*' and '#' stand only in patterns" in str(caught.value)
        # Where answers would have come to.
        assert all(name.startswith("$temporary.") for name in await client.queues())


async def test_within_a_word_they_are_characters_like_any_other() -> None:
    async with lives() as node, node.client() as client:
        for name in TAME:
            await client.send(name, b"x")
            async with client.consumer(name) as consumer:
                delivery = await consumer.receive(timeout=1)
                assert delivery is not None and delivery.body == b"x"
                await consumer.ack(delivery, confirm=True)


async def test_what_is_made_otherwise_is_checked_alike() -> None:
    async with lives() as node, node.client() as client:
        for name in ("a.*", "#"):
            with pytest.raises(SettingsError, match="wildcards"):
                await client.create_queue("q", address=name)
            with pytest.raises(SettingsError, match="wildcards"):
                await client.create_divert("d", address=name, forwarding_address="b")
            with pytest.raises(SettingsError, match="wildcards"):
                await client.create_divert("d", address="b", forwarding_address=name)
            with pytest.raises(SettingsError, match="wildcards"):
                Bridge("b", queue=name, target="tcp://127.0.0.1:1")
            with pytest.raises(SettingsError, match="wildcards"):
                Bridge("b", queue="out", forwarding_address=name, target="tcp://127.0.0.1:1")
            with pytest.raises(SettingsError, match="wildcards"):
                Broker("hq", data_dir=None, queues=[name])


async def test_a_broker_refuses_them_from_whoever_does_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.client.admin._admin.check_place", passed)
    monkeypatch.setattr("meshq.client.send._implicit_producers.parse_place", passed)
    async with lives() as node, node.client() as client:
        for call in ("create_queue", "create_address", "send", "consumer"):
            with pytest.raises(UsageError, match="wildcards"):
                await CALLS[call](client, "a.*")
        assert await client.queues() == []
        await client.send("from", b"x")
        with pytest.raises(UsageError, match="wildcards"):
            await client.move_messages("from", "a.*")
        assert (await client.queue("from")).ready == 1


async def test_a_broker_does_not_explain_what_nobody_can_send() -> None:
    async with lives() as node, node.client() as client:
        for name in WILD:
            with pytest.raises(SettingsError, match="wildcards"):
                node.broker.explain_route(name)
        with pytest.raises(UsageError, match="wildcards"):
            await client._context.ask("explain_route", address="a.*")


async def test_a_queue_of_an_earlier_version_can_be_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        for module in ("client.admin._admin", "broker.catalog._definitions", "broker.catalog._names"):
            for name in ("check_place", "check_literal"):
                earlier.setattr(f"meshq.{module}.{name}", passed, raising=False)
        earlier.setattr("meshq.client.send._implicit_producers.parse_place", passed)
        async with lives() as node, node.client() as client:
            await client.create_queue("dlq.*")
            await client.send("dlq.*", b"x")
            earlier.undo()
            async with node.client() as other:
                with pytest.raises(SettingsError, match="wildcards"):
                    await other.send("dlq.*", b"x")
            async with client.consumer("dlq.*", browse=True) as browser:
                assert (await browser.receive(timeout=1)).body == b"x"
            async with client.consumer("dlq.*") as consumer:
                delivery = await consumer.receive(timeout=1)
                assert delivery.body == b"x"
                await consumer.ack(delivery, confirm=True)
            await client.delete_queue("dlq.*")
            with pytest.raises(UsageError, match="wildcards"):
                await consume(client, "dlq.*")


def passed(one: str, other: str = "") -> str:
    """Nothing is checked."""
    return other
