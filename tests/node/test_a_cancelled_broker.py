"""A broker that is cancelled has stopped; one that could not go on has failed."""

from __future__ import annotations

import errno
import random

import attrs
import pytest
import trio

from meshq import Broker, JournalBrokenError, abc
from meshq.concurrency import BackgroundBlock
from meshq.env import real_env
from meshq.notifications import BrokerStateChanged
from meshq.testing import InlineThreads, SimDisk

#: More than it takes to start.
CHECKPOINTS_MAX = 200


def machine(disk: SimDisk) -> abc.Env:
    return attrs.evolve(real_env(), disk=disk.mount(), threads=InlineThreads(), local={})


async def states(broker: Broker, after: int | None = None) -> list[str]:
    """Enter a broker's block, with a cancellation after so many turns of the loop; what it says of its states."""
    events = broker.events()
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            for _ in range(after or 0):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

        if after is not None:
            nursery.start_soon(cancel)
        async with broker:
            if after is not None:
                await trio.sleep_forever()
    return [event.state async for event in events if isinstance(event, BrokerStateChanged)]


@pytest.mark.slow
async def test_a_broker_that_is_cancelled_while_it_starts_has_stopped() -> None:
    seen = set()
    for after in range(CHECKPOINTS_MAX):
        # Who has a turn first is left to chance.
        for _ in range(12):
            broker = Broker("hq", data_dir="/data/hq", env=machine(SimDisk()))
            told = tuple(await states(broker, after))
            assert broker.state == ("stopped" if told else "new")
            seen.add(told)
        if "active" in told:
            break
    known = {("starting", "stopping", "stopped"), ("starting", "active", "stopping", "stopped")}
    assert known <= seen <= {(), *known}


async def test_a_cancellation_in_the_moment_of_the_start_ends_the_body_and_nothing_else() -> None:
    hosted, stop, ended = BackgroundBlock("it"), trio.Event(), trio.Event()

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        scope.cancel()
        await stop.wait()
        ended.set()

    async def end() -> None:
        stop.set()
        with trio.fail_after(1):
            await ended.wait()

    with trio.CancelScope() as scope:
        await hosted.open(run)
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            await hosted.close(error, end)
            raise
    assert scope.cancelled_caught and ended.is_set()


async def test_a_cancellation_before_the_start_ends_what_has_just_started() -> None:
    hosted, seen = BackgroundBlock("it"), list[str]()

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        scope.cancel()
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            seen.append("ended")

    with trio.CancelScope() as scope:
        await hosted.open(run)
        seen.append("entered")
    assert seen == ["ended"]


async def test_a_broker_that_is_cancelled_while_it_runs_has_stopped() -> None:
    broker = Broker("hq", data_dir=None, env=machine(SimDisk()))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        assert broker.state == "active"
        nursery.cancel_scope.cancel()
    assert broker.state == "stopped"


async def test_what_fails_has_failed_also_where_the_rest_of_it_is_cancelled() -> None:
    disk = SimDisk(random.Random(0))
    broker = Broker("hq", data_dir="/data/hq", env=machine(disk))
    events = broker.events()
    with pytest.raises(JournalBrokenError):
        async with broker, broker.client() as client:
            disk.faults.inject("sync", errno.EIO)
            await client.send("q", b"x")
            await trio.sleep_forever()
    assert broker.state == "failed"
    told = [event.state async for event in events if isinstance(event, BrokerStateChanged)]
    assert told == ["starting", "active", "failed"]
