"""Subscriptions from threads and from asyncio: over a socket and in process."""

from __future__ import annotations

import pytest

from meshq import SettingsError, aio, blocking
from tests.real.aio_kit import asyncio_test

ACCEPTORS = ["tcp://127.0.0.1:0"]


def test_threads_are_refused_wildcards_by_name() -> None:
    with (
        blocking.Broker("hq", data_dir=None, acceptors=ACCEPTORS) as broker,
        blocking.connect(broker.urls[0]) as remote,
        broker.client() as local,
    ):
        for client in (remote, local):
            with pytest.raises(SettingsError, match=r"'news\.#'.*wildcards"):
                client.subscribe("news.#")
            assert client.queues() == []


@asyncio_test
async def test_tasks_of_asyncio_are_refused_wildcards_by_name() -> None:
    async with (
        aio.Broker("hq", data_dir=None, acceptors=ACCEPTORS) as broker,
        aio.connect(broker.urls[0]) as remote,
        broker.client() as local,
    ):
        for client in (remote, local):
            with pytest.raises(SettingsError, match=r"'news\.#'.*wildcards"):
                client.subscribe("news.#")
            assert await client.queues() == []
