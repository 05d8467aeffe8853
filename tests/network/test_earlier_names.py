"""What was kept for a broker under another name: taken over where it is clear whose it is, and else moved by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from meshq import Bridge, NetworkConnector
from meshq.client import kept_queues
from meshq.network._kept_plan import KeptNames
from tests.bridge.kit import numbered
from tests.network.kit import World, known, publish, start, subscribed, take, until, world

ID = "a" * 32


def named_as_before(patch: pytest.MonkeyPatch) -> None:
    """Have queues named as they were before a place stood in their names."""
    made = KeptNames.__init__

    def without_a_place(self: KeptNames, *about: Any) -> None:
        made(self, *about)
        self._prefix = f"{self._connector}."

    patch.setattr(KeptNames, "__init__", without_a_place)


async def queues(made: World, name: str) -> list[str]:
    async with made.here(name) as client:
        return await client.queues()


def test_a_queue_without_a_place_is_that_of_the_only_place_and_of_none_of_several() -> None:
    old = [f"t::$meshq.network.hub.t@{ID}", f"t::$meshq.network.hub.t@{ID}#7-{'0' * 16}"]
    others = [
        f"t::$meshq.network.hub/1.t@{ID}",
        f"t::$meshq.network.hub.eu.t@{ID}",
        f"t::$meshq.network.hub.t@{'b' * 32}",
    ]
    one = KeptNames("hub", "b:1", ID, ["b:1"])
    assert [f"t::{queue.name}" for queue in one.earlier([*old, *others])] == old
    assert [queue.copy for queue in one.earlier(old)] == [0, 7]
    # Which of them are of the broker that is linked, their ways say: the others are left.
    assert [f"t::{queue.name}" for queue in one.left_behind([*old, *others])] == [*old, *others[:1]]
    taken = one.earlier(old[:1])
    assert [f"t::{queue.name}" for queue in one.left_behind([*old, *others], taken)] == [old[1], others[0]]
    for several in (
        KeptNames("hub", "b:1", ID, ["b:1", "c:1"]),
        KeptNames("hub", "b:1,c:1", ID, ["b:1,c:1"]),
        KeptNames("hub", "b:1", ID),
    ):
        assert several.earlier([*old, *others]) == []


async def test_what_an_earlier_version_has_kept_is_forwarded_once_and_its_queue_goes() -> None:
    async with world() as made:
        with pytest.MonkeyPatch.context() as patch:
            named_as_before(patch)
            await start(made, {"b": "", "a": "b"}, connection_ttl=3)
            async with subscribed(made, "b", name="kept", durable=True):
                await known(made, "ab", "t", 1)
            await made.kill("b")
            await publish(made, "a", numbered(5))
            assert [queue.partition(".t@")[0] for queue in await queues(made, "a")] == ["t::$meshq.network.to-b"]
            await made.kill("a")
        await made.start("a")
        await publish(made, "a", numbered(5, 5))
        await made.start("b")
        async with subscribed(made, "b", name="kept", durable=True) as (there,):
            await take(there, 10, quiet=5)
        await until(lambda: made.brokers["a"].network("to-b").bridges()[0].kept == 0)
        (queue,) = await queues(made, "a")
        assert queue.startswith("t::$meshq.network.to-b/")


async def test_what_an_earlier_version_has_kept_is_for_its_broker_and_not_for_the_one_at_another_url(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at = "b"

    def hub() -> list[NetworkConnector]:
        url = f"static:(tcp://{at}:5000?insecure=true)"
        return [NetworkConnector("hub", url, retry_interval=1, connection_ttl=3, check_period=1)]

    async with world() as made:
        with pytest.MonkeyPatch.context() as patch:
            named_as_before(patch)
            await made.start("b")
            await made.start("a", hub)
            async with subscribed(made, "b", name="kept", durable=True):
                await made.brokers["a"].network("hub").wait_for(queue="t", consumers=1, timeout=30)
            await made.kill("b")
            await publish(made, "a", numbered(5))
            (left,) = await queues(made, "a")
            await made.kill("a")
        # The other version begins at another broker, while this one is away.
        at = "c"
        await made.start("c")
        await made.start("a", hub)
        await made.brokers["a"].network("hub").wait_for(timeout=30)
        await trio.sleep(5)
        assert await queues(made, "a") == [left] and await made.count("a", left) == 5
        told = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "network_queue_left"]
        assert told and all(repr(left) in one for one in told)
        await made.kill("a")
        at = "b"
        await made.start("b")
        await made.start("a", hub)
        async with subscribed(made, "b", name="kept", durable=True) as (there,):
            await take(there, 5)
        await until(lambda: made.brokers["a"].network("hub").bridges()[0].kept == 0)
        assert left not in await queues(made, "a")


@pytest.mark.parametrize("told", [{}, {"target_id": "c" * 32}, {"target_id": ID}])
async def test_a_broker_that_does_not_say_for_whom_its_queues_are_names_none(told: dict[str, Any]) -> None:
    async def ask(operation: str, **named: Any) -> dict[str, Any]:
        return {"queue0": "t::x", "more": False, **told}

    client = cast("Any", SimpleNamespace(_context=SimpleNamespace(ask=ask)))
    names, more = await kept_queues(client, "b" * 32, "$meshq.network.hub.", most=10, target_id=ID)
    assert (names, more) == (["t::x"] if told == {"target_id": ID} else [], False)


async def test_what_waits_for_a_place_that_a_connector_has_no_more_comes_to_its_subscription_by_a_bridge() -> None:
    at = "b"

    def hub() -> list[NetworkConnector]:
        url = f"static:(tcp://{at}:5000?insecure=true)"
        return [NetworkConnector("hub", url, retry_interval=1, connection_ttl=3, check_period=1)]

    async with world() as made:
        await made.start("b")
        await made.start("a", hub)
        async with subscribed(made, "b", name="kept", durable=True):
            await made.brokers["a"].network("hub").wait_for(queue="t", consumers=1, timeout=30)
        await made.kill("b")
        await publish(made, "a", numbered(5))
        (left,) = await queues(made, "a")
        await made.kill("a")
        # The broker behind the link has moved, with its subscription, to another place.
        at = "c"
        await made.start("c")
        async with subscribed(made, "c", name="kept", durable=True) as (there,):
            await made.start("a", hub)
            await made.brokers["a"].network("hub").wait_for(queue="t", consumers=1, timeout=30)
            async with made.here("a") as client:
                (now,) = [queue for queue in await client.queues() if queue != left]
                assert await client.move_messages(left, "rescued") == 5
                await client.delete_queue(left)
            bridge = Bridge(
                "rescue", queue="rescued", target="tcp://c:5000?insecure=true", forwarding_address="t::kept"
            )
            await made.kill("a")
            await made.start("a", lambda: [*hub(), bridge])
            assert {one.body for one in await take(there, 5)} == set(numbered(5))
        assert await queues(made, "a") == ["rescued", now]
