"""More large sends at a time than a node takes from a session: they wait for their turn, and hold up nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from meshq import AddressSettings, CallTimeoutError, Client, ClosedError, SettingsError, limits
from tests.node.lives import Lives, lives
from tests.node.test_large_messages import BODY, files, one, pieces, quiet

MANY = limits.UPLOADS_MAX
FULL = {"full": AddressSettings(full_policy="block", max_size_messages=1)}


async def crowd(life: Lives, client: Client, nursery: trio.Nursery) -> None:
    """Sixteen large sends wait at a full address."""
    await client.send("full", b"first")
    for _ in range(MANY):
        nursery.start_soon(client.send, "full", pieces())
    await quiet()
    assert len(files(life)) == MANY


async def test_who_has_no_turn_waits_in_order_while_small_messages_go_on() -> None:
    async with lives(address_settings=FULL) as life, life.client(call_timeout=5) as client:
        sent: list[int] = []

        async def send(number: int) -> None:
            await client.send("free", b"%d" % number + BODY)
            sent.append(number)

        async with trio.open_nursery() as nursery:
            await crowd(life, client, nursery)
            for number in range(4):
                nursery.start_soon(send, number)
                await quiet()
            # For longer than any timeout: overload is waited out.
            await trio.sleep(60)
            with trio.fail_after(1):
                await client.send("free", b"small")
            assert sent == [] and len(files(life)) == MANY
            assert await one(client, "full") == b"first"
            for _ in range(MANY):
                assert await one(client, "full") == BODY
        assert sorted(sent) == list(range(4))
        assert await one(client, "free") == b"small"
        for number in range(4):
            assert await one(client, "free") == b"%d" % number + BODY


async def test_what_is_small_after_all_needs_no_turn_and_what_is_wrong_is_told_at_once() -> None:
    async with lives(address_settings=FULL) as life, life.client() as client, trio.open_nursery() as nursery:
        await crowd(life, client, nursery)
        with trio.fail_after(1):
            await client.send("free", pieces(b"small"))
            with pytest.raises(SettingsError, match="address"):
                await client.send("", BODY)
        nursery.cancel_scope.cancel()


async def test_those_that_are_cancelled_while_they_wait_leave_their_turns_to_the_next() -> None:
    async with lives(address_settings=FULL) as life, life.client() as client, trio.open_nursery() as nursery:
        await crowd(life, client, nursery)
        with trio.move_on_after(1) as scope:
            async with trio.open_nursery() as given_up:
                for _ in range(MANY + 1):
                    given_up.start_soon(client.send, "free", b"given up" + BODY)
        assert scope.cancelled_caught
        nursery.start_soon(client.send, "free", BODY)
        await quiet()
        assert await one(client, "full") == b"first"
        assert await one(client, "full") == BODY
        assert await one(client, "free") == BODY
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            # Those that were given up have left their turns, too.
            await quiet()
            with trio.fail_after(5):
                await client.send("free", BODY)
            assert await one(client, "free") == BODY


async def test_each_of_those_that_fail_leaves_its_turn() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield BODY
        raise OSError("no more")

    async with lives() as life, life.client() as client:
        for _ in range(MANY + 1):
            with pytest.raises(OSError, match="no more"):
                await client.send("q", broken())
        with trio.fail_after(5):
            await client.send("q", BODY)
        assert await one(client) == BODY


async def test_without_a_connection_the_wait_ends_not_done() -> None:
    async with (
        lives(address_settings=FULL) as life,
        life.client(call_failover_timeout=3, reconnect_attempts=10**6) as client,
        trio.open_nursery() as nursery,
    ):
        errors: list[CallTimeoutError] = []

        async def send() -> None:
            with pytest.raises(CallTimeoutError) as caught:
                await client.send("free", BODY)
            errors.append(caught.value)

        await client.send("full", b"first")
        for _ in range(MANY + 2):
            nursery.start_soon(send)
        await life.broker.stop()
        await trio.sleep(10)
        assert [error.outcome for error in errors] == ["not_done"] * (MANY + 2)
        await life.start()
        with trio.fail_after(5):
            await client.send("free", BODY)


async def test_who_waits_when_the_client_is_closed_has_done_nothing() -> None:
    async with lives(address_settings=FULL) as life, trio.open_nursery() as nursery:
        errors: list[str] = []

        async def send() -> None:
            with pytest.raises(ClosedError) as caught:
                await client.send("q", BODY)
            errors.append(caught.value.outcome)

        async def stuck() -> AsyncIterator[bytes]:
            yield BODY
            await trio.sleep_forever()

        async with life.client() as client:
            for _ in range(MANY):
                nursery.start_soon(client.send, "q", stuck())
            await quiet()
            for _ in range(3):
                nursery.start_soon(send)
            await quiet()
        await quiet()
        assert errors == ["not_done"] * 3
        assert files(life) == []
        nursery.cancel_scope.cancel()


async def test_those_that_wait_go_on_in_a_new_session() -> None:
    async with lives(address_settings=FULL) as life, life.client() as client:
        async with trio.open_nursery() as nursery:
            await client.send("full", b"first")
            for number in range(MANY + 3):
                nursery.start_soon(client.send, "full", b"%2d" % number + BODY)
            await quiet()
            await life.again(killed=True)
            assert await one(client, "full") == b"first"
            got = [await one(client, "full") for _ in range(MANY + 3)]
        assert sorted(got) == [b"%2d" % number + BODY for number in range(MANY + 3)]
