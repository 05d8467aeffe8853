"""What a bridge does when its target says no: nothing is lost or doubled, and nothing of it counts as a delivery."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio

from meshq import AddressSettings, Permissions, Security
from meshq.bridge import Forwarder
from meshq.message import Message
from tests.bridge.kit import World, bridge_of, bridge_to, doubled, numbered, until, world

#: With these, ten deliveries that count make a dead letter.
COUNTING = {"#": AddressSettings(dead_letter_address="dead", max_delivery_attempts=3)}


def bounded(most: int, policy: str = "fail") -> dict[str, AddressSettings]:
    """An address ``in`` that takes so many messages."""
    return {"in": AddressSettings(max_size_messages=most, full_policy=policy)}


@pytest.mark.slow
async def test_what_a_full_target_refuses_is_tried_again_and_nothing_becomes_a_dead_letter() -> None:
    async with world() as made:
        await made.start("far", address_settings=bounded(256))
        await made.start("near", bridge_to("far"), address_settings=COUNTING)
        await made.send("near", "out", numbered(1_000))
        bridge = bridge_of(made.brokers["near"])
        # More often than a message may be delivered.
        await until(lambda: bridge.statistics().refused > 20 * 500)
        found = bridge.statistics()
        assert found.state in ("carrying", "waiting") and found.last_error is not None and "'in'" in found.last_error
        assert await made.count("near", "dead") == 0
        assert await made.count("near", "out") == 1_000 - found.carried
        got = await made.drain("far", "in")
        assert (len(got), doubled(got)) == (1_000, {})
        assert await made.count("near", "dead") == 0
        assert bridge.statistics().carried == 1_000
        async with made.here("near") as client:
            await client.create_queue("dead")
            # Nothing is there that would be sent a second time.
            assert await client.redrive("dead") == 0
        assert await made.drain("far", "in") == []


async def test_what_a_target_refuses_goes_back_as_never_delivered_and_in_order() -> None:
    async with world() as made:
        await made.start("far", address_settings=bounded(1))
        await made.send("far", "in", [b"first"])
        await made.start("near", bridge_to("far"), address_settings=COUNTING)
        await made.send("near", "out", numbered(300))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().refused >= 3_000)
        bridge.pause()
        await until(lambda: bridge.statistics().state == "paused")
        async with made.here("near") as client, client.consumer("out") as consumer:
            got = []
            while len(got) < 300:
                got += await consumer.receive_many(300)
            assert [delivery.body for delivery in got] == numbered(300)
            assert {delivery.delivery_count for delivery in got} == {1}


async def test_a_target_that_refuses_is_not_asked_all_the_time() -> None:
    async with world() as made:
        await made.start("far", address_settings=bounded(1))
        await made.send("far", "in", [b"first"])
        await made.start("near", bridge_to("far", retry_interval=2))
        await made.send("near", "out", [b"1"])
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().refused >= 1)
        before = bridge.statistics().refused
        assert bridge.statistics().state == "waiting"
        await trio.sleep(19)
        assert bridge.statistics().refused - before in (9, 10)
        # What is waited for is tried again after the interval, and no later.
        assert await made.drain("far", "in", quiet=2.5) == [b"first", b"1"]


async def test_what_the_target_has_confirmed_of_a_batch_is_acknowledged_before_the_rest_is_tried_again() -> None:
    async with world() as made:
        # It takes the first run of 256, and no more.
        await made.start("far", address_settings=bounded(1))
        await made.start("near", bridge_to("far", retry_interval=100, use_duplicate_detection=False))
        await made.send("near", "out", numbered(1_000))
        await until(lambda: bridge_of(made.brokers["near"]).statistics().refused > 0)
        await trio.sleep(1)
        taken = await made.count("far", "in")
        assert 0 < taken < 1_000
        assert await made.count("near", "out") == 1_000 - taken


@pytest.mark.slow
async def test_a_refused_message_does_not_hold_up_those_for_another_address() -> None:
    async with world() as made:
        await made.start("far", address_settings={"one": AddressSettings(max_size_messages=1, full_policy="fail")})
        await made.send("far", "one", [b"first"])
        await made.start("near", queues=["out"])
        async with made.here("near") as client:
            for address in ("one", "two"):
                await client.create_divert(address, address=address, forwarding_address="out", exclusive=True)
        for body in numbered(40):
            await made.send("near", "one" if int(body) % 2 else "two", [body])
        await made.stop("near")
        await made.start("near", bridge_to("far", window=5, forwarding_address=None))
        # What is diverted keeps the address that it was sent to.
        await until(lambda: _carried(made, 20))
        assert sorted(await made.drain("far", "two"), key=int) == [b"%d" % n for n in range(0, 40, 2)]
        assert len(await made.drain("far", "one")) == 21
        await until(lambda: _carried(made, 40))


def _carried(made: World, count: int) -> bool:
    return bridge_of(made.brokers["near"]).statistics().carried >= count


SECURITY = Security(
    users={"b": "secret", "admin": "secret too"},
    roles={"b": ["carrier"], "admin": ["admin"]},
    permissions={
        "in": Permissions(send=["carrier"]),
        "other": Permissions(send=["nobody"]),
        "#": Permissions(manage=["admin"]),
    },
)


@pytest.mark.parametrize("address", ["other", "not-there"])
async def test_what_its_user_may_not_do_is_refused_and_comes_through_once_it_may(address: str) -> None:
    async with world() as made:
        await made.start("far", security=SECURITY, queues=["in", "other"])
        login = {"user": "b", "password": "secret", "forwarding_address": address}
        await made.start("near", bridge_to("far", **login), address_settings=COUNTING)
        await made.send("near", "out", numbered(10))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().refused >= 200)
        assert "secret" not in str(bridge.statistics())
        assert (bridge.statistics().carried, await made.count("near", "dead")) == (0, 0)
        await made.stop("far")
        may = {**SECURITY.permissions, address: Permissions(send=["carrier"], create=["carrier"])}
        await made.start("far", security=Security(users=SECURITY.users, roles=SECURITY.roles, permissions=may))
        await until(lambda: bridge.statistics().carried == 10)
        assert await made.drain("far", address) == numbered(10)


async def test_where_nothing_is_made_on_first_use_the_messages_wait() -> None:
    async with world() as made:
        await made.start("far", address_settings={"in": AddressSettings(auto_create_queues=False)})
        await made.start("near", bridge_to("far"), address_settings=COUNTING)
        await made.send("near", "out", numbered(10))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().refused >= 200)
        assert await made.count("near", "out") == 10
        async with made.here("far") as client:
            await client.create_queue("in")
        await until(lambda: bridge.statistics().carried == 10)


async def test_one_message_that_is_refused_for_itself_does_not_hold_up_the_others() -> None:
    """An answer is wanted where the bridge's user may not have one."""
    async with world() as made:
        await made.start("far", security=SECURITY, queues=["in", "other"])
        await made.start("near", bridge_to("far", user="b", password="secret", window=2), address_settings=COUNTING)
        await made.send("near", "out", [Message(b"bad", reply_to="other"), *numbered(20)])
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().carried == 20 and bridge.statistics().refused > 10)
        assert await made.count("near", "out") == 1
        assert await made.count("near", "dead") == 0


async def test_nothing_is_looked_into_before_all_that_was_sent_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four flights the first one and the third are refused for one message each."""
    asked: list[bool] = []
    look_into = Forwarder._look_into

    async def watched(self: Forwarder, *given: Any) -> None:
        asked.append(self.is_sending)
        await look_into(self, *given)

    async with world() as made:
        await made.start("far", security=SECURITY, queues=["in", "other"])
        about = {"user": "b", "password": "secret", "window": 256, "retry_interval": 1_000}
        await made.start("near", bridge_to("far", **about), address_settings=COUNTING, queues=["out"])
        await made.send("near", "out", [b"first"])
        assert await made.drain("far", "in", quiet=2) == [b"first"]
        monkeypatch.setattr(Forwarder, "_look_into", watched)
        made.network.delay("near", "far", 0.1, 0.1)
        bad = Message(b"bad", reply_to="other")
        for first in range(0, 240, 60):
            await made.send("near", "out", [*([bad] if first in (0, 120) else []), *numbered(60, first)])
            await trio.sleep(0.01)
        assert sorted(await made.drain("far", "in"), key=int) == numbered(240)
        assert await made.count("near", "out") == 2
        assert asked and not any(asked)


async def test_what_expires_before_a_refusal_is_looked_into_is_not_received() -> None:
    """A refused flight waits until another one is decided, for whose address the target blocks."""
    security = Security(
        users=SECURITY.users,
        roles=SECURITY.roles,
        permissions={**SECURITY.permissions, "full": Permissions(send=["carrier"])},
    )
    async with world() as made:
        full = {"full": AddressSettings(max_size_messages=1, full_policy="block")}
        await made.start("far", security=security, queues=["in", "other", "full"], address_settings=full)
        about = {"user": "b", "password": "secret", "forwarding_address": None, "retry_interval": 1_000}
        await made.start("near", bridge_to("far", **about), address_settings=COUNTING, queues=["out"])
        bridge = bridge_of(made.brokers["near"])
        async with made.here("near") as client:
            for address in ("in", "full"):
                await client.create_divert(address, address=address, forwarding_address="out", exclusive=True)
                await client.send(address, b"first")
            await until(lambda: _carried(made, 2))
            assert await made.drain("far", "in", quiet=2) == [b"first"]
            await client.send_many("in", [Message(b"bad", reply_to="other"), *(Message(b"x", ttl=5) for _ in range(9))])
            await client.send("full", b"second")
            await trio.sleep(10)
            assert (bridge.statistics().refused, await made.count("far", "in")) == (0, 0)
            assert await made.drain("far", "full", quiet=0.5) == [b"first", b"second"]
            assert await made.drain("far", "in", quiet=0.5) == []
            await until(lambda: _carried(made, 12))


async def test_what_a_target_blocks_waits_and_counts_for_nothing() -> None:
    async with world() as made:
        await made.start("far", address_settings=bounded(10, "block"))
        await made.start("near", bridge_to("far", call_timeout=0.5), address_settings=COUNTING)
        await made.send("near", "out", numbered(1_000))
        await trio.sleep(20)
        assert await made.count("near", "dead") == 0
        got = await made.drain("far", "in")
        assert (len(got), doubled(got)) == (1_000, {})


async def test_a_bridge_that_ends_in_the_middle_leaves_no_delivery_that_counts() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far"), address_settings=COUNTING)
        made.network.cut("near", "far")
        await made.send("near", "out", numbered(100))
        await trio.sleep(1)
        for _ in range(6):
            await made.stop("near")
            await made.start("near")
            await trio.sleep(1)
        made.services["near"] = tuple
        await made.stop("near")
        await made.start("near")
        assert await made.count("near", "dead") == 0
        async with made.here("near") as client, client.consumer("out") as consumer:
            got = await consumer.receive_many(100)
        assert {delivery.delivery_count for delivery in got} == {1}


async def test_a_target_that_comes_and_goes_makes_no_dead_letters() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", call_timeout=0.2), address_settings=COUNTING)
        made.network.cut("far", "near")
        await made.send("near", "out", numbered(100))
        await trio.sleep(30)
        assert await made.count("near", "dead") == 0
        made.network.heal()
        got = await made.drain("far", "in")
        assert (sorted(got), doubled(got)) == (sorted(numbered(100)), {})


async def test_what_a_transformer_fails_with_counts_and_waits() -> None:
    calls: list[float] = []

    def change(message: Message) -> Message:
        calls.append(trio.current_time())
        raise KeyError("a canary")

    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", transformer=change, retry_interval=1), address_settings=COUNTING)
        await made.send("near", "out", [b"1"])
        await until(lambda: _dead(made))
        # Delivered three times, and no hot loop.
        assert len(calls) == 3
        assert [round(later - earlier, 1) for earlier, later in pairwise(calls)] == [1, 1]
        found = bridge_of(made.brokers["near"]).statistics()
        assert (found.failed, found.refused, found.carried) == (3, 0, 0)
        assert found.last_error == "its transformer has raised KeyError"


async def _dead(made: World) -> bool:
    return await made.count("near", "dead") == 1


async def test_what_a_transformer_makes_that_cannot_be_sent_is_its_failure_and_holds_up_nobody() -> None:
    half = "x" * 33_000

    def change(message: Message) -> Message:
        if message.body != b"3":
            return message
        return Message(message.body, properties={"p": half, "q": half})

    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", transformer=change), address_settings=COUNTING)
        await made.send("near", "out", numbered(6))
        await until(lambda: _dead(made))
        assert sorted(await made.drain("far", "in")) == [b"0", b"1", b"2", b"4", b"5"]
        assert bridge_of(made.brokers["near"]).statistics().failed == 3


async def test_what_a_transformer_ends_is_counted_and_gone() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", transformer=lambda message: None))
        await made.send("near", "out", numbered(6))
        await until(lambda: _empty(made))
        found = bridge_of(made.brokers["near"]).statistics()
        assert (found.ended, found.carried, found.last_error) == (6, 0, None)


async def _empty(made: World) -> bool:
    return await made.count("near", "out") == 0


async def test_what_was_confirmed_before_a_bridge_ends_is_acknowledged() -> None:
    async with world() as made:
        full = AddressSettings(max_size_messages=1, full_policy="block")
        await made.start("far", address_settings={"two": full})
        await made.send("far", "two", [b"first"])
        await made.start("near", queues=["out"])
        async with made.here("near") as client:
            for address in ("one", "two"):
                await client.create_divert(address, address=address, forwarding_address="out", exclusive=True)
        for body in numbered(10):
            await made.send("near", "one" if int(body) < 5 else "two", [body])
        await made.stop("near")
        # What is sent again is stored again.
        await made.start("near", bridge_to("far", forwarding_address=None, use_duplicate_detection=False))
        await until(lambda: _carried(made, 5))
        await trio.sleep(1)
        await made.stop("near")
        await made.start("near")
        await trio.sleep(1)
        assert await made.drain("far", "one") == numbered(5)
