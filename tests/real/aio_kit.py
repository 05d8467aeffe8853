"""Tests of asyncio: a decorator that runs them, and what they share."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from meshq.aio import Broker, Client, Consumer, Delivery, connect
from tests.real.blocking_kit import our_threads


def asyncio_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A plain function that runs a test under asyncio; threads of ours end with the blocks, whatever it does."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        assert our_threads() == []
        asyncio.run(test(**fixtures), debug=True)
        assert our_threads() == []

    # Who asks whether it is a coroutine function must not look behind it.
    signature = inspect.signature(test)
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


@asynccontextmanager
async def clients(data_dir: Path | None) -> AsyncIterator[list[Client]]:
    """A client over TCP and one in process, of the same broker."""
    where = data_dir / "hq" if data_dir is not None else None
    async with (
        Broker("hq", data_dir=where, acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as far,
        broker.client() as near,
    ):
        yield [far, near]


async def received(consumer: Consumer) -> Delivery:
    """The next message, which is expected."""
    delivery = await consumer.receive(timeout=10)
    assert delivery is not None
    return delivery


async def until(condition: Callable[[], bool]) -> None:
    """Return when something that another thread does has happened; raise when it takes too long."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
