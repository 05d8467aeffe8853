"""Publish and subscribe, request and reply, and workers, over every face."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from meshq import AddressSettings, CallTimeoutError, Message, SettingsError
from tests.real.faces.kit import Face, promise, received


@promise
async def test_subscribers_get_copies_and_a_named_durable_one_gathers(face: Face) -> None:
    async with face.clients() as (client, other):
        async with client.subscribe("news") as own, client.subscribe("news", name="alice", durable=True) as named:
            assert named.queue == "news::alice"
            await other.send("news", b"1")
            for consumer in (own, named):
                delivery = await received(consumer)
                assert delivery.body == b"1"
                await delivery.ack(confirm=True)
        await other.send("news", b"2")
        async with client.subscribe("news", name="alice", durable=True) as named:
            assert (await received(named)).body == b"2"
        assert await client.unsubscribe("news", "alice") == 1
        with pytest.raises(SettingsError, match=r"'news\.#'.*wildcards"):
            client.subscribe("news.#")
        assert await client.queues() == []


@promise
async def test_several_share_one_subscription(face: Face) -> None:
    async with (
        face.clients() as (client, other),
        client.subscribe("news", name="team", shared=True, window=1, ack="auto") as first,
        other.subscribe("news", name="team", shared=True, window=1, ack="auto") as second,
    ):
        await client.send_many("news", [b"1", b"2"])
        assert {(await received(first)).body, (await received(second)).body} == {b"1", b"2"}


@promise
async def test_requests_are_answered_and_nobody_waits_for_ever(face: Face) -> None:
    async with face.clients() as (client, server):
        await client.create_queue("service")

        async def answer() -> None:
            async with server.consumer("service") as consumer:
                for _ in range(7):
                    delivery = await received(consumer)
                    capitals = delivery.body.upper()
                    await delivery.reply(Message(capitals) if delivery.content_type else capitals)
                    await delivery.ack()

        async def ask() -> None:
            for number in range(5):
                assert (await client.request("service", b"w%d" % number, timeout=10)).body == b"W%d" % number
            question = Message(b"z", content_type="a Message")
            assert [(await client.request("service", question, timeout=10)).body for _ in range(2)] == [b"Z", b"Z"]

        await face.together(answer, ask)
        with pytest.raises(SettingsError, match="correlation_id='mine' is not allowed; allowed: left out of the"):
            await client.request("service", Message(b"x", correlation_id="mine"), timeout=10)
        with pytest.raises(CallTimeoutError) as caught:
            await client.request("service", b"nobody", timeout=0.02)
        assert caught.value.outcome == "unknown" and isinstance(caught.value, TimeoutError)


@promise
async def test_a_worker_goes_on_after_a_handler_has_failed(face: Face) -> None:
    settings = {"q": AddressSettings(max_delivery_attempts=2, dead_letter_address="dead")}
    async with face.clients(address_settings=settings) as (client, other):
        await other.send_many("q", [b"bad", b"good", b"settled"])
        seen: list[bytes] = []
        told: list[tuple[bytes, str]] = []

        async def handler(delivery: Any) -> None:
            seen.append(delivery.body)
            if delivery.body == b"settled":
                await delivery.reject()
            if len(seen) == 4:
                client.stop_serving()
            if delivery.body == b"bad":
                raise ValueError

        def on_error(delivery: Any, error: Exception) -> None:
            told.append((delivery.body, type(error).__name__))

        await client.serve("q", handler, on_error=on_error, window=2)
        await client.flush()
        assert sorted(seen) == [b"bad", b"bad", b"good", b"settled"]
        assert told == [(b"bad", "ValueError")] * 2
        statistics = await other.queue("q")
        assert (statistics.ready, statistics.acknowledged, statistics.rejected) == (0, 1, 1)
        assert statistics.dead_lettered == 1

        def ends(delivery: Any, error: Exception) -> None:
            raise KeyError("enough")

        async def fails(delivery: Any) -> None:
            raise ValueError

        await other.send("q", b"bad")
        with pytest.raises(KeyError, match="enough"):
            await other.serve("q", fails, on_error=ends)


@promise
async def test_a_warning_names_the_error_and_not_its_text_and_says_what_was_settled_before(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "meshq.client"):
        async with face.clients() as (client, _):
            await client.send("q", b"x")

            async def handler(delivery: Any) -> None:
                client.stop_serving()
                await delivery.ack()
                raise ValueError("secret")

            await client.serve("q", handler)
            await client.flush()
            assert (await client.queue("q")).acknowledged == 1
    (record,) = [one for one in caplog.records if getattr(one, "event", "") == "handler_failed"]
    assert "ValueError in handler" in record.getMessage() and "secret" not in caplog.text
    assert record.getMessage().endswith("; the handler had settled the message before")


@promise
async def test_a_stopped_worker_finishes_what_it_has_begun_and_begins_nothing_more(face: Face) -> None:
    async with face.clients() as (client, other):
        await other.send_many("q", [b"%d" % number for number in range(10)])
        begun: list[bytes] = []
        done: list[bytes] = []
        go = face.signal()

        async def handler(delivery: Any) -> None:
            begun.append(delivery.body)
            await go.wait()
            done.append(delivery.body)

        async def stop() -> None:
            await face.until(lambda: len(begun) == 3)
            client.stop_serving()
            assert done == []
            go.set()

        await face.together(lambda: client.serve("q", handler, concurrency=3), stop)
        assert sorted(done) == sorted(begun) == [b"0", b"1", b"2"]
        await client.serve("q", handler)
        await client.flush()
        statistics = await other.queue("q")
        assert (statistics.ready, statistics.delivering, statistics.acknowledged) == (7, 0, 3)


@promise
async def test_a_worker_returns_when_its_client_is_closed(face: Face) -> None:
    async with face.clients() as (client, other):
        await other.send("q", b"1")
        begun = face.signal()

        async def handler(delivery: Any) -> None:
            begun.set()

        async def close() -> None:
            await begun.wait()
            await client.close()

        await face.together(lambda: client.serve("q", handler, concurrency=2), close)


@promise
async def test_wrong_settings_of_a_worker_are_refused_before_it_begins(face: Face) -> None:
    async with face.clients() as (client, _):

        async def handler(delivery: Any) -> None:
            raise AssertionError("it was called")

        for wrong in ({"concurrency": 0}, {"window": 0}, {"on_error": 1}, {"priority": 1_000}):
            with pytest.raises(SettingsError):
                await client.serve("q", handler, **wrong)
        with pytest.raises(SettingsError):
            await client.serve("q", 7)
        assert await client.queues() == []
