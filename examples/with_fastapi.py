"""A FastAPI service that is its own broker: orders come by HTTP, are kept on disk, and are packed one after another.

Run it with ``fastapi run examples/with_fastapi.py``.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from meshq.aio import Broker, Client


async def pack(client: Client, packed: list[str]) -> None:
    """Work on orders until the service stops; one that is not done by then comes again."""
    async with client.consumer("orders", window=10) as consumer:
        async for order in consumer:
            packed.append(order.body.decode())
            await order.ack()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The broker has a thread of its own: a slow request does not hold it up."""
    async with (
        Broker("shop", data_dir="data/shop") as broker,
        broker.client() as client,
        asyncio.TaskGroup() as group,
    ):
        app.state.client, app.state.packed = client, []
        packer = group.create_task(pack(client, app.state.packed))
        yield
        packer.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{name}", status_code=202)
async def order(name: str, request: Request) -> dict[str, str]:
    """Accepted means: it is on the disk."""
    await request.app.state.client.send("orders", name.encode())
    return {"accepted": name}


@app.get("/orders")
async def orders(request: Request) -> dict[str, int]:
    """What waits, and what is done."""
    queue = await request.app.state.client.queue("orders")
    return {"waiting": queue.ready + queue.delivering, "packed": len(request.app.state.packed)}
