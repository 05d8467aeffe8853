"""A producer's window is no larger than the ring of duplicate ids that must know what it may repeat."""

from __future__ import annotations

import pytest

from meshq import AddressSettings, Broker, UsageError

RING = AddressSettings(duplicate_id_cache_size=100)


async def test_a_window_larger_than_the_ring_is_refused_when_it_is_set() -> None:
    async with Broker("hq", data_dir=None, address_settings={"#": RING}) as broker, broker.client() as client:
        with pytest.raises(UsageError, match=r"window=101: 'orders' remembers the last 100 duplicate ids") as caught:
            async with client.producer("orders", window=101):
                pass
        assert caught.value.outcome == "not_done"
        async with client.producer("orders", window=100) as producer:
            await producer.send(b"1", duplicate_id="1")
        # One send at a time has no window.
        await client.send("orders", b"1", duplicate_id="1")
        assert (await client.queue("orders")).added == 1


async def test_where_no_ids_are_remembered_a_window_may_be_of_any_size() -> None:
    settings = {"#": AddressSettings(duplicate_id_cache_size=0)}
    async with Broker("hq", data_dir=None, address_settings=settings) as broker, broker.client() as client:
        async with client.producer("orders", window=1_000_000) as producer:
            await producer.send(b"1", duplicate_id="1")
        assert (await client.queue("orders")).added == 1


async def test_a_ring_is_not_made_smaller_than_the_window_of_a_producer_that_is_there() -> None:
    async with Broker("hq", data_dir=None, address_settings={"#": RING}) as broker, broker.client() as client:
        larger = AddressSettings(duplicate_id_cache_size=200)
        await client.set_address_settings("orders", larger)
        async with client.producer("orders", window=200) as producer:
            with pytest.raises(UsageError, match=r"window=200: 'orders' remembers the last 199 duplicate ids"):
                await client.set_address_settings("orders", AddressSettings(duplicate_id_cache_size=199))
            with pytest.raises(UsageError, match=r"window=200: 'orders' remembers the last 100 duplicate ids"):
                await client.remove_address_settings("orders")
            # Nothing changed, and what is about other addresses may.
            assert (await client.address_settings("orders")).duplicate_id_cache_size == 200
            await client.set_address_settings("others", AddressSettings(duplicate_id_cache_size=1))
            await producer.send(b"1", duplicate_id="1")
        await client.remove_address_settings("orders")
        assert (await client.address_settings("orders")).duplicate_id_cache_size == 100
