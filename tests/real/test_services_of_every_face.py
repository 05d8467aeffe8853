"""Services of a broker from threads and from asyncio."""

from __future__ import annotations

import threading

import pytest

from meshq import NotFoundError, aio, blocking
from tests.node.test_services import PausedService
from tests.real.aio_kit import asyncio_test


def check(paused: PausedService) -> None:
    """Every call has come to the service, in the thread of the broker."""
    assert [call for call, _ in paused.calls] == ["pause", "resume", "statistics"]
    assert threading.get_ident() not in {thread for _, thread in paused.calls}


def test_threads_pause_and_resume_a_service_by_its_name() -> None:
    paused = PausedService("out")
    with blocking.Broker("hq", data_dir=None, services=[paused]) as broker:
        with pytest.raises(NotFoundError, match="no service 'in'; known: 'out'"):
            broker.service("in")
        service = broker.service("out", kind="clock")
        service.pause()
        service.resume()
        assert service.statistics().name == "out"
    check(paused)


@asyncio_test
async def test_tasks_of_asyncio_pause_and_resume_a_service_by_its_name() -> None:
    paused = PausedService("out")
    async with aio.Broker("hq", data_dir=None, services=[paused]) as broker:
        with pytest.raises(NotFoundError, match="no service 'in'; known: 'out'"):
            broker.service("in")
        service = broker.service("out", kind="clock")
        service.pause()
        service.resume()
        assert service.statistics().name == "out"
    check(paused)
