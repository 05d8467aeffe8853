"""What was kept for a broker under another name: taken over where it is clear whose it is, and else moved by hand."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import Bridge, NetworkConnector
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
    assert [f"t::{queue.name}" for queue in one.left_behind([*old, *others])] == others[:1]
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
