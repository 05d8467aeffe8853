"""Diverts, and what came into being on first use, as a client sees them."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import AddressSettings, Divert, FilterError, NotFoundError, SettingsError, UsageError
from tests.node.lives import bodies, lives
from tests.process import ENDS, End


@pytest.mark.parametrize("end", ENDS)
async def test_diverts_are_made_listed_and_deleted_and_outlive_a_restart(end: End) -> None:
    async with lives() as node, node.client() as client:
        about: dict[str, Any] = {"address": "orders", "forwarding_address": "audit"}
        for _ in range(2):
            await client.create_divert("large", **about, filter="amount > 5", exclusive=True)
        await client.create_divert("all", address="orders", forwarding_address="copy")
        await node.again(end=end)
        assert await client.diverts() == [
            Divert(name="all", address="orders", forwarding_address="copy", filter=None, exclusive=False),
            Divert(name="large", filter="amount > 5", exclusive=True, **about),
        ]
        for amount in (1, 9):
            await client.send("orders", b"%d" % amount, properties={"amount": amount})
        for queue, wanted in (("orders", [b"1"]), ("audit", [b"9"]), ("copy", [b"1", b"9"])):
            async with client.consumer(queue) as consumer:
                message = await consumer.receive(timeout=1)
                # Where it was sent, whatever way it came.
                assert message is not None and message.address == "orders"
                await message.nack()
                assert sorted(await bodies(consumer)) == wanted
        await client.delete_divert("all")
        with pytest.raises(NotFoundError, match="no divert 'all'"):
            await client.delete_divert("all")
        with pytest.raises(UsageError, match="exists with exclusive=True, not False"):
            await client.create_divert("large", **about, filter="amount > 5")
        with pytest.raises(UsageError, match="would close a loop: audit -> orders -> audit"):
            await client.create_divert("back", address="audit", forwarding_address="orders")
        with pytest.raises(FilterError):
            await client.create_divert("x", **about, filter="a = = 1")
        for wrong in ({"address": ""}, {"forwarding_address": "a::b"}, {"exclusive": "yes"}):
            with pytest.raises(SettingsError):
                await client.create_divert("x", **{**about, **wrong})
        assert [divert.name for divert in await client.diverts()] == ["large"]


async def test_what_came_into_being_on_first_use_goes_if_it_is_set_so() -> None:
    settings = {"#": AddressSettings(auto_delete_queues=True), "kept": AddressSettings(auto_delete_queues=False)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await client.create_queue("made")
        for name in ("made", "kept", "work"):
            await client.send(name, b"x")
            async with client.consumer(name) as consumer:
                assert await bodies(consumer) == [b"x"]
        assert await client.queues() == ["kept", "made"]
        assert node.broker.statistics().addresses == 2


async def test_a_queue_with_a_filter_takes_what_matches_and_keeps_its_filter_over_a_restart() -> None:
    async with lives() as node, node.client() as client:
        await client.create_queue("emea", filter="region = 'emea'")
        with pytest.raises(UsageError, match="exists with filter=\"region = 'emea'\", and keeps it"):
            await client.create_queue("emea")
        with pytest.raises(FilterError):
            await client.create_queue("x", filter="region == 'emea'")
        await node.again()
        for region in ("emea", "us"):
            await client.send("emea", region.encode(), properties={"region": region})
        assert (await client.queue("emea")).filter == "region = 'emea'"
        assert (await client.queue("emea")).ready == 1
        assert node.broker.statistics().unrouted == 1
