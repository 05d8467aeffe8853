"""What is no delivery is not settled, under every face: a typed error, and nothing has changed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from meshq import SettingsError, aio, blocking
from tests.node.lives import lives

CALLS = ["ack", "nack", "reject"]
REFUSED = r"deliveries=None \(NoneType\) is not allowed"


@pytest.mark.parametrize("call", CALLS)
async def test_it_is_told_and_the_others_can_be_settled_still(call: str) -> None:
    wrong: Any
    async with lives(queues=["q", "p"]) as life, life.client() as client:
        for queue in ("q", "p"):
            await client.send_many(queue, [b"1", b"2", b"3"])
        async with client.consumer("q") as consumer, client.consumer("p") as other:
            batch = await consumer.receive_many(3, timeout=5)
            far = await other.receive()
            for wrong in (None, 5, b"1", batch, object()):
                for given in ([wrong], [*batch, wrong], [batch[0], wrong, batch[1]], [wrong, *batch]):
                    with pytest.raises(SettingsError, match="deliveries") as caught:
                        await getattr(consumer, call)(*given)
                    assert caught.value.value is wrong
            async with client.transaction() as transaction:
                for given in ([None], [*batch, None], [batch[0], far, None]):
                    with pytest.raises(SettingsError, match=REFUSED):
                        await transaction.ack(*given)
                await transaction.rollback()
            # None of them is settled.
            await consumer.ack(*batch, confirm=True)
        assert (await client.queue("q")).ready == 0


def test_it_is_the_same_for_threads() -> None:
    nothing: Any = None
    with blocking.Broker("hq", data_dir=None) as broker, broker.client() as client, client.consumer("q") as consumer:
        client.send("q", b"1")
        one = consumer.receive(timeout=10)
        for call in CALLS:
            with pytest.raises(SettingsError, match=REFUSED):
                getattr(consumer, call)(one, nothing)
        with client.transaction() as transaction:
            with pytest.raises(SettingsError, match=REFUSED):
                transaction.ack(one, nothing)
            transaction.ack(one)  # type: ignore[arg-type]


def test_it_is_the_same_for_asyncio() -> None:
    nothing: Any = None

    async def main() -> None:
        async with (
            aio.Broker("hq", data_dir=None) as broker,
            broker.client() as client,
            client.consumer("q") as consumer,
        ):
            await client.send("q", b"1")
            one = await consumer.receive(timeout=10)
            for call in CALLS:
                with pytest.raises(SettingsError, match=REFUSED):
                    await getattr(consumer, call)(one, nothing)
            async with client.transaction() as transaction:
                with pytest.raises(SettingsError, match=REFUSED):
                    await transaction.ack(one, nothing)
                await transaction.ack(one)  # type: ignore[arg-type]

    asyncio.run(main())
