"""A service of the program's own that fails: its error ends the broker, and leaves the block as it was raised."""

from __future__ import annotations

import asyncio

import pytest
import trio

from meshq import Broker, UsageError, abc, aio, blocking


class Own(abc.Service):
    """Raises when it is told to."""

    name = "own"

    def __init__(self, error: BaseException, *, when: str, nested: bool = False) -> None:
        self.error = error
        self._when = when
        self._nested = nested

    def announce(self, control: abc.NodeControl) -> None:
        """The node has its identity."""
        if self._when == "announced":
            raise self.error

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until it fails."""
        if self._nested:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await self._serve(task_status)
        else:
            await self._serve(task_status)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        if self._when == "starting":
            raise self.error
        task_status.started()
        if self._when == "active":
            await trio.lowlevel.checkpoint()
            raise self.error
        try:
            await trio.sleep_forever()
        finally:
            if self._when == "stopping":
                raise self.error


class OwnError(Exception):
    """The program's own."""


@pytest.mark.parametrize("hosted", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("when", ["announced", "starting", "active", "stopping"])
@pytest.mark.parametrize("kind", [OwnError, UsageError])
async def test_its_error_leaves_the_block_as_it_was_raised(
    kind: type[Exception], when: str, nested: bool, hosted: bool
) -> None:
    service = Own(kind("out of paper"), when=when, nested=nested)
    broker = Broker("hq", data_dir=None, services=[service])
    entered = False
    with pytest.raises(kind, match="out of paper") as caught:
        async with broker.run_in_thread() if hosted else broker:
            entered = True
            if when == "active":
                await trio.sleep_forever()
    assert caught.value is service.error
    assert entered is (when in ("active", "stopping"))
    assert broker.state == "failed"


async def test_the_bodys_own_error_goes_along() -> None:
    service, own = Own(OwnError("out of paper"), when="stopping"), ValueError("the body's")
    with pytest.raises(OwnError) as caught:
        async with Broker("hq", data_dir=None, services=[service]):
            raise own
    assert caught.value is service.error and caught.value.__context__ is own


@pytest.mark.parametrize("when", ["starting", "active", "stopping"])
def test_it_is_the_same_for_threads_and_for_asyncio(when: str) -> None:
    service = Own(OwnError("out of paper"), when=when)
    broker = blocking.Broker("hq", data_dir=None, services=[service])
    with pytest.raises(OwnError) as caught, broker:
        if when == "active":
            broker._over.wait(10)
    assert caught.value is service.error

    async def main() -> None:
        async with aio.Broker("hq", data_dir=None, services=[service]):
            if when == "active":
                await asyncio.sleep(10)

    service.error = OwnError("out of ink")
    with pytest.raises(OwnError) as caught:
        asyncio.run(main())
    assert caught.value is service.error


class Unreported(abc.Service):
    """Returns from ``serve`` and has never reported that it runs."""

    name = "tick"

    def __init__(self, *, when_cancelled: bool = False) -> None:
        self.serving = trio.Event()
        self._when_cancelled = when_cancelled

    def announce(self, control: abc.NodeControl) -> None:
        """The node has its identity."""

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Return at once, or swallow the cancellation."""
        self.serving.set()
        if self._when_cancelled:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                return


UNREPORTED = "the service 'tick' returned from serve.. and never reported started"


@pytest.mark.parametrize("hosted", [False, True])
async def test_a_service_that_returns_and_never_reported_started_is_named(hosted: bool) -> None:
    broker = Broker("hq", data_dir=None, services=[Unreported()])
    with pytest.raises(UsageError, match=UNREPORTED):
        async with broker.run_in_thread() if hosted else broker:
            raise AssertionError("a broker whose service has not started was entered")
    assert broker.state == "failed"


def test_a_service_that_never_reported_started_is_named_for_threads_and_for_asyncio() -> None:
    with pytest.raises(UsageError, match=UNREPORTED), blocking.Broker("hq", data_dir=None, services=[Unreported()]):
        raise AssertionError("a broker whose service has not started was entered")

    async def main() -> None:
        async with aio.Broker("hq", data_dir=None, services=[Unreported()]):
            raise AssertionError("a broker whose service has not started was entered")

    with pytest.raises(UsageError, match=UNREPORTED):
        asyncio.run(main())


async def test_a_service_that_returns_because_the_start_is_cancelled_is_no_mistake() -> None:
    service = Unreported(when_cancelled=True)
    broker = Broker("hq", data_dir=None, services=[service])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.run)
        await service.serving.wait()
        nursery.cancel_scope.cancel()
    assert broker.state == "stopped"


async def test_a_service_that_returns_because_the_broker_is_stopped_is_no_mistake() -> None:
    service = Unreported(when_cancelled=True)
    broker = Broker("hq", data_dir=None, services=[service], stop_timeout=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.run)
        await service.serving.wait()
        await broker.stop()
    assert broker.state == "stopped"
