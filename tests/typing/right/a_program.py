"""What a program says that uses meshq as it is meant: no type checker objects to any of it."""

from __future__ import annotations

import math
import ssl

import meshq
from meshq import AddressSettings, Bridge, Broker, ClientFactory, ClusterConnection, Message, blocking
from meshq import aio as asyncio_face


async def on_trio() -> None:
    settings = AddressSettings(full_policy="block", default_routing="multicast", duplicate_in_transaction="skip")
    services = [
        ClusterConnection("mesh", connector="here", static_connectors=["there"], load_balancing="strict"),
        Bridge("out", queue="orders", target="there", window=100, transformer=lambda message: message),
    ]
    broker = Broker("shop", data_dir=None, address_settings={"#": settings}, services=services)
    async with broker, broker.client(call_timeout=3, reconnect_attempts=math.inf) as client:
        await client.create_queue("orders", routing="anycast", filter="region = 'emea'")
        await client.send("orders", b"42", properties={"region": "emea"}, ttl=60)
        await client.send("orders", Message.json({"umbrellas": 42}, priority=9))
        async with client.consumer("orders", ack="auto", window=10) as consumer:
            delivery = await consumer.receive(timeout=1)
            if delivery is not None:
                body: bytes = delivery.body
                await delivery.reply(body, durable=False, content_type="text/plain")


async def on_asyncio(context: ssl.SSLContext) -> None:
    async with asyncio_face.connect("tls://localhost:1", tls=context, user="me", password="secret") as client:
        await client.send("orders", b"42", duplicate_id="order 42")
        async with client.consumer("orders", ack="explicit") as consumer:
            async for delivery in consumer:
                await delivery.ack()


def without_async() -> None:
    factory = ClientFactory("tcp://localhost:1", client_id="me")
    assert factory.settings.client_id == "me"
    with blocking.connect("tcp://localhost:1", insecure=True) as client:
        client.send("orders", b"42", group="umbrellas")
        for name in client.queues():
            assert client.queue(name).ready >= 0
    assert issubclass(meshq.BrokenError, meshq.MeshqError)
