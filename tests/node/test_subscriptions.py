"""Publish and subscribe: queues that come and go with their subscribers, and those that stay."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from meshq import (
    AddressSettings,
    Client,
    FailedOver,
    NotFoundError,
    RefusedError,
    SettingsError,
    UsageError,
)
from tests.node.lives import bodies, lives
from tests.process import ENDS, End


async def test_each_subscription_gets_every_message_and_without_a_name_goes_with_its_consumer() -> None:
    async with lives() as node, node.client() as client, node.client() as other:
        async with client.subscribe("news") as one, other.subscribe("news") as two:
            async with other.subscribe("news") as three:
                await client.send_many("news", [b"1", b"2"])
                assert [await bodies(each) for each in (one, two, three)] == [[b"1", b"2"]] * 3
                assert len(await client.queues()) == 3
            await client.send("news", b"3")
            assert [await bodies(each) for each in (one, two)] == [[b"3"]] * 2
            names = await client.queues()
            assert len(names) == 2 and all(name.startswith("news::$") for name in names)
            (first, *_) = [await client.queue(name) for name in names]
            assert (first.address, first.routing, first.durable, first.subscription) == (
                "news", "multicast", False, "own",
            )  # fmt: skip
        assert await client.queues() == []
        await client.send("news", b"to nobody")
        assert node.broker.statistics().unrouted == 1


async def test_what_was_not_settled_goes_with_a_subscription_that_ends() -> None:
    async with lives() as node, node.client() as client:
        async with client.subscribe("news", window=1) as consumer:
            await client.send_many("news", [b"1", b"2"])
            assert await consumer.receive(timeout=1) is not None
        assert await client.queues() == []
        statistics = node.broker.statistics()
        assert (statistics.ready, statistics.delivering, statistics.memory_used) == (0, 0, 0)


@pytest.mark.parametrize("end", ENDS)
async def test_a_durable_subscription_gathers_while_its_client_is_away_and_over_a_restart(end: End) -> None:
    async with lives() as node:
        async with node.client() as client, client.subscribe("news", name="alice", durable=True) as consumer:
            assert consumer.queue == "news::alice"
            await client.send("news", b"0")
            assert await bodies(consumer) == [b"0"]
        async with node.client() as client:
            await client.send("news", b"1")
            found = await client.queue("news::alice")
            assert (found.ready, found.consumers, found.durable, found.subscription) == (1, 0, True, "single")
        await node.again(end=end)
        async with node.client() as client:
            await client.send("news", b"2")
            async with client.subscribe("news", name="alice", durable=True) as consumer:
                assert await bodies(consumer) == [b"1", b"2"]
            # A queue like any other, by its full name.
            await client.send("news::alice", b"3")
            async with client.consumer("news::alice") as consumer:
                assert await bodies(consumer) == [b"3"]
            await client.send("news", b"4")
            assert await client.unsubscribe("news", "alice") == 1
            assert await client.queues() == []
            with pytest.raises(NotFoundError, match="no subscription 'alice' on 'news'"):
                await client.unsubscribe("news", "alice")
        await node.again()
        async with node.client() as client:
            assert await client.queues() == []


async def test_two_addresses_may_have_subscriptions_and_queues_of_one_name() -> None:
    async with lives() as node, node.client() as client:
        await client.create_queue("alice")
        for address in ("news", "sport"):
            async with client.subscribe(address, name="alice", durable=True):
                pass
        await client.send("news", b"n")
        await client.send("sport", b"s")
        assert await client.queues() == ["alice", "news::alice", "sport::alice"]
        assert [(await client.queue(name)).ready for name in await client.queues()] == [0, 1, 1]
        assert await client.purge_queue("news::alice") == 1
        await client.delete_queue("sport::alice")
        assert await client.queues() == ["alice", "news::alice"]


async def test_a_shared_subscription_shares_and_one_that_is_not_durable_goes_with_its_last_consumer() -> None:
    async with lives() as node, node.client() as client, node.client() as other:
        async with client.subscribe("news", name="desk", shared=True) as one:
            async with other.subscribe("news", name="desk", shared=True) as two:
                await client.send_many("news", [b"%d" % number for number in range(10)])
                shares = [await bodies(one), await bodies(two)]
                assert [len(share) for share in shares] == [5, 5] and len({*shares[0], *shares[1]}) == 10
            await client.send("news", b"later")
            assert await bodies(one) == [b"later"]
        assert await client.queues() == []


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": "alice", "durable": True}, RefusedError, "'alice' on 'news' is not shared, and session 1 'reader'"),
    ({"name": "alice"}, UsageError, "exists with durable=True, not False"),
    ({"name": "alice", "durable": True, "shared": True}, UsageError, "exists with shared=False, not True"),
]


@pytest.mark.parametrize(("wanted", "error", "text"), WRONG)
async def test_a_second_consumer_and_other_terms_are_refused(
    wanted: dict[str, Any], error: type[Exception], text: str
) -> None:
    async with lives() as node, node.client(client_id="reader") as client, node.client() as other:
        async with client.subscribe("news", name="alice", durable=True) as first:
            with pytest.raises(error, match=text):
                async with other.subscribe("news", **wanted):
                    raise AssertionError("it was let in")
            with pytest.raises(RefusedError, match="session 1 'reader'"):
                async with other.consumer("news::alice"):
                    raise AssertionError("it was let in by its queue's name")
            with pytest.raises(RefusedError, match="consumes from"):
                await other.unsubscribe("news", "alice")
            await other.send("news", b"1")
            assert await bodies(first) == [b"1"]
        async with other.subscribe("news", name="alice", durable=True):
            assert (await client.queue("news::alice")).consumers == 1


@pytest.mark.parametrize(
    "wanted",
    [
        {"durable": True},
        {"shared": True},
        {"name": ""},
        {"name": "a::b"},
        {"name": 7},
        {"name": "a", "durable": 1},
        {"window": 0},
        {"ack": "never"},
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_asked(wanted: dict[str, Any]) -> None:
    async with lives(data_dir=None) as node, node.client() as client:
        with pytest.raises(SettingsError):
            client.subscribe("news", **wanted)
        with pytest.raises(SettingsError):
            client.subscribe("news::alice")


async def test_what_exists_otherwise_is_no_subscription() -> None:
    closed = {"closed": AddressSettings(auto_create_queues=False)}
    async with lives(address_settings=closed) as node, node.client() as client:
        await client.create_queue("work")
        await client.create_queue("desk", address="news", routing="multicast")
        for address, name, error in (
            ("work", "a", UsageError),
            ("news", "desk", UsageError),
            ("closed", "a", NotFoundError),
            ("$meshq.x", "a", UsageError),
            ("$temporary.x", "a", UsageError),
        ):
            with pytest.raises(error):
                async with client.subscribe(address, name=name):
                    raise AssertionError(address)
        with pytest.raises(NotFoundError):
            await client.unsubscribe("news", "desk")
        async with client.subscribe("news", name="a"):
            with pytest.raises(UsageError, match="there is a subscription 'a' on 'news'"):
                await client.create_queue("a", address="news", routing="multicast")
        assert await client.queues() == ["desk", "work"]


async def renewed(client: Client, node: Any) -> None:
    """The broker is killed and started again, and the client is back."""
    events = client.events()
    await node.again(killed=True)
    with trio.fail_after(60):
        async for event in events:
            if isinstance(event, FailedOver):
                return


async def test_after_a_failover_subscribers_are_there_again() -> None:
    async with (
        lives() as node,
        node.client() as client,
        client.subscribe("news") as own,
        client.subscribe("news", name="desk", shared=True) as shared,
        client.subscribe("news", name="alice", durable=True) as durable,
    ):
        await client.send("news", b"before")
        assert await shared.receive(timeout=1) is not None
        await renewed(client, node)
        await client.send("news", b"after")
        # What a queue that was not durable had is gone with it.
        assert await bodies(own) == [b"after"]
        assert await bodies(shared) == [b"after"]
        assert await bodies(durable) == [b"before", b"after"]
