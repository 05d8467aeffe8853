"""Services of a broker from threads and from asyncio."""

from __future__ import annotations

import pytest

from meshq import Bridge, NotFoundError, aio, blocking
from tests.real.aio_kit import asyncio_test


def bridge() -> Bridge:
    return Bridge("out", queue="q", target="inproc://nowhere", retry_interval=3_600)


def test_threads_pause_and_resume_a_service_by_its_name() -> None:
    with blocking.Broker("hq", data_dir=None, services=[bridge()]) as broker:
        with pytest.raises(NotFoundError, match="no service 'in'; known: 'out'"):
            broker.service("in")
        service = broker.service("out", kind="bridge")
        service.pause()
        assert service.statistics().state == "paused"
        service.resume()
        assert service.statistics().state != "paused"


@asyncio_test
async def test_tasks_of_asyncio_pause_and_resume_a_service_by_its_name() -> None:
    async with aio.Broker("hq", data_dir=None, services=[bridge()]) as broker:
        with pytest.raises(NotFoundError, match="no service 'in'; known: 'out'"):
            broker.service("in")
        service = broker.service("out", kind="bridge")
        service.pause()
        assert service.statistics().state == "paused"
        service.resume()
        assert service.statistics().state != "paused"
