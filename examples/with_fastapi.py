"""A FastAPI service that is its own broker: orders come by HTTP, are kept on disk, and are packed one after another.

Run it with ``uvicorn --app-dir examples with_fastapi:app``, with one worker: the service is a broker, and a second one
can't use its store.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI, Request

from meshq import Message
from meshq.aio import Broker, Delivery


async def pack(packed: list[str], order: Delivery) -> None:
    """Work on one order: acknowledged at the end, and given back if this raises."""
    packed.append(order.json()["name"])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The broker has a thread of its own: a slow request does not hold it up."""
    packed: list[str] = []
    async with (
        Broker("shop", data_dir="data/shop") as broker,
        broker.client() as client,
        asyncio.TaskGroup() as group,
    ):
        app.state.client, app.state.packed = client, packed
        group.create_task(client.serve("orders", partial(pack, packed), concurrency=4))
        yield
        client.stop_serving()  # the orders that are being packed are finished first


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{name}", status_code=202)
async def order(name: str, request: Request) -> dict[str, str]:
    """Accepted means: it is on the disk."""
    await request.app.state.client.send("orders", Message.json({"name": name}))
    return {"accepted": name}


@app.get("/orders")
async def orders(request: Request) -> dict[str, int]:
    """What waits, and what is done."""
    queue = await request.app.state.client.queue("orders")
    return {"waiting": queue.ready + queue.delivering, "packed": len(request.app.state.packed)}
