"""Addresses that hold no more than they may, as programs see it."""

from __future__ import annotations

from contextlib import suppress

import attrs
import pytest
import trio

from meshq import AddressFullError, AddressSettings, Broker, Client, NotFoundError, connect
from tests.node.lives import bodies, lives, machine


async def test_two_producers_of_a_client_one_of_them_to_a_full_address() -> None:
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=5)}
    async with lives(address_settings=settings) as node, node.client() as client:
        sent = 0

        async def fill() -> None:
            nonlocal sent
            for number in range(20):
                await client.send("slow", b"%d" % number)
                sent = number + 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            await trio.sleep(1)
            assert sent == 5
            for number in range(10):
                await client.send("free", b"%d" % number)
            async with client.consumer("slow") as consumer:
                assert await bodies(consumer) == [b"%d" % number for number in range(20)]
        found = await client.queue("slow")
        assert (found.added, found.dropped, found.ready) == (20, 0, 0)


@pytest.mark.parametrize("inside", [True, False])
async def test_a_send_that_waits_holds_up_no_send_to_an_address_that_was_used_before(inside: bool) -> None:
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=2)}
    async with lives(address_settings=settings) as node, node.broker.client() if inside else node.client() as client:
        for address in ("free", "slow", "slow"):
            await client.send(address, b"early")
        # The broker has said how far this producer may send; nothing else comes from it.
        await client.flush()
        async with client.consumer("slow") as consumer:
            assert len(await bodies(consumer)) == 2
        for _ in range(2):
            await client.send("slow", b"fills it")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "slow", b"waits")
            await trio.sleep(1)
            with trio.fail_after(1):
                await client.send("free", b"late")
                await client.send_many("free", [b"later", b"latest"])
            assert (await client.queue("slow")).ready == 2
            await client.purge_queue("slow")
        assert (await client.queue("slow")).ready == 1


async def test_who_waits_for_room_goes_on_after_a_restart() -> None:
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=2)}
    async with lives(address_settings=settings) as node, node.client() as client:
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                async with client.producer("slow") as producer:
                    for number in range(6):
                        await producer.send(b"%d" % number)

            nursery.start_soon(send)
            await trio.sleep(1)
            await node.again(killed=True)
            async with client.consumer("slow") as consumer:
                got = await bodies(consumer)
        assert list(dict.fromkeys(got)) == [b"%d" % number for number in range(6)]


async def test_what_was_refused_holds_up_nobody_when_senders_are_to_wait_from_the_next_life_on() -> None:
    full = AddressSettings(full_policy="fail", max_size_messages=2)
    async with lives(address_settings={"slow": full}) as node, node.client() as client:
        for number in range(20):
            with suppress(AddressFullError):
                await client.send("slow", b"%d" % number)
        node.settings["address_settings"] = {"slow": attrs.evolve(full, full_policy="block")}
        await node.again()
        async with client.consumer("slow") as consumer:
            assert await bodies(consumer) == [b"0", b"1"]
            with trio.fail_after(5):
                for number in range(20, 24):
                    await client.send("slow", b"%d" % number)
                    assert await bodies(consumer) == [b"%d" % number]


async def test_what_was_refused_holds_up_nobody_when_senders_are_to_wait_from_now_on() -> None:
    settings = {"none": AddressSettings(auto_create_queues=False)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await client.create_queue("none")
        await client.send("none", b"1")
        await client.delete_queue("none")
        for _ in range(20):
            with pytest.raises(NotFoundError):
                await client.send("none", b"2")
        await client.create_queue("none")
        await client.set_address_settings("none", AddressSettings(full_policy="block", max_size_messages=2))
        async with client.consumer("none") as consumer:
            with trio.fail_after(5):
                await client.send("none", b"3")
            assert await bodies(consumer) == [b"3"]


async def test_what_a_divert_takes_away_keeps_nobody_waiting() -> None:
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=4)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await client.create_divert("all", address="slow", forwarding_address="other", exclusive=True)
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for _ in range(30):
                    nursery.start_soon(client.send, "slow", b"x")
            async with client.producer("slow") as producer:
                for _ in range(3_000):
                    await producer.send(b"x")
        assert (await client.queue("other")).ready == 3_030


async def test_sends_that_are_given_up_while_the_address_is_full_leave_nothing() -> None:
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=2)}
    async with lives(address_settings=settings) as node, node.client() as client, trio.open_nursery() as nursery:
        await client.send_many("slow", [b"1", b"2"])
        nursery.start_soon(client.send, "slow", b"3")
        await trio.sleep(1)
        for _ in range(300):
            with trio.move_on_after(0.1):
                await client.send("slow", b"never")
            with trio.move_on_after(0.1):
                await client.send_many("slow", [b"never", b"never"])
        assert client.statistics().unconfirmed < 200
        nursery.start_soon(client.send, "slow", b"4")
        async with client.consumer("slow") as consumer:
            assert await bodies(consumer) == [b"1", b"2", b"3", b"4"]
        assert client.statistics().unconfirmed == 0


async def test_a_send_to_a_full_address_fails_and_was_not_done() -> None:
    settings = {"full": AddressSettings(full_policy="fail", max_size_messages=1)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await client.send("full", b"1")
        with pytest.raises(AddressFullError, match="'full' has 1 messages") as caught:
            await client.send("full", b"2")
        assert caught.value.outcome == "not_done"
        async with client.consumer("full") as consumer:
            assert await bodies(consumer) == [b"1"]
        await client.send("full", b"3")


async def test_what_is_dropped_is_confirmed_and_seen() -> None:
    settings = {"lossy": AddressSettings(full_policy="drop", max_size_messages=1)}
    async with lives(address_settings=settings) as node, node.client() as client:
        for body in (b"1", b"2", b"3"):
            await client.send("lossy", body)
        assert (await client.queue("lossy")).dropped == 2
        assert node.broker.statistics().dropped == 2


async def test_a_producer_that_the_broker_has_no_mark_of_goes_on_after_a_restart() -> None:
    """What is not durable leaves no mark; what its producer may send is counted from where it is, all the same."""
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=5)}
    async with lives(address_settings=settings) as node, node.client() as client:
        got: list[bytes] = []

        async def take() -> None:
            async with node.client() as other, other.consumer("slow") as consumer:
                got.extend(await bodies(consumer))

        with trio.fail_after(60):
            async with client.producer("slow", window=4) as producer:
                for life in range(3):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(take)
                        for number in range(40):
                            await producer.send(b"%d" % (40 * life + number), durable=False)
                        await producer.flush()
                    await node.again(killed=life == 1)
        assert got == [b"%d" % number for number in range(120)]


async def test_a_producer_that_comes_from_another_node_waits_for_room_and_goes_on() -> None:
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=5)}
    env = machine()
    with trio.fail_after(60):
        async with (
            Broker("one", env=env, data_dir="/data/one", address_settings=settings) as one,
            Broker("two", env=env, data_dir="/data/two", address_settings=settings),
            connect(
                "(inproc://one,inproc://two)", env=env, retry_interval=0.01, load_balancing="first_element"
            ) as client,
            client.producer("slow", window=4) as producer,
        ):
            for name in ("one", "two"):
                async with connect(f"inproc://{name}", env=env) as other, trio.open_nursery() as nursery:
                    got: list[bytes] = []

                    async def take(other: Client = other, got: list[bytes] = got) -> None:
                        async with other.consumer("slow") as consumer:
                            got.extend(await bodies(consumer))

                    nursery.start_soon(take)
                    for number in range(40):
                        await producer.send(b"%d" % number)
                    await producer.flush()
                assert got == [b"%d" % number for number in range(40)]
                if name == "one":
                    await one.stop()

            # And it waits there as everybody does.
            async def fill() -> None:
                for number in range(9):
                    await producer.send(b"%d" % number)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fill)
                await trio.sleep(1)
                # A run goes in whole, and so the bound is passed by one.
                assert (await client.queue("slow")).added < 49 and producer.unconfirmed
                async with client.consumer("slow") as consumer:
                    assert len(await bodies(consumer)) == 9
