"""A shared directory of a host that does not answer any more: calls on it hang, and nothing else does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import attrs
import pytest
import trio

from meshq import BroadcastGroup, Broker, DiscoveryGroup, SharedDirectory
from meshq.abc import Env
from meshq.env import real_env
from meshq.env._threads import POOL_THREADS, WorkerThreads
from meshq.errors import BrokenError
from meshq.testing import MemoryNetwork, SimDisk

PATIENCE_S = 30.0
T = TypeVar("T")


class HangingDisk(SimDisk):
    """A disk whose directories can stop to answer, until a test lets all calls go on."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.answers = threading.Event()
        self.hung = 0
        #: Set when a call hangs: threads begin in real time, while that of a test jumps.
        self.hangs = threading.Event()

    def names(self, directory: str) -> list[str]:
        if not self.answers.is_set() and directory.startswith("/shared"):
            self.hung += 1
            self.hangs.set()
            self.answers.wait()
            self.hung -= 1
        return super().names(directory)


class HangingThreads(WorkerThreads):
    """Real threads for calls that hang; what answers does so at once, because time must not jump meanwhile."""

    def __init__(self, disk: HangingDisk) -> None:
        super().__init__()
        self._disk = disk

    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        if not self._disk.answers.is_set() and "/elsewhere" not in pool:
            return await super().run(function, *arguments, pool=pool)
        async with self._limiter(pool):
            return function(*arguments)


@pytest.fixture
def disk() -> Iterator[HangingDisk]:
    """A disk whose directories hang; at the end of the test they answer."""
    found = HangingDisk()
    yield found
    found.answers.set()


def outside(disk: HangingDisk) -> Env:
    """The outside of a node with such a disk."""
    return attrs.evolve(real_env(), disk=disk, threads=HangingThreads(disk))


async def test_a_directory_that_hangs_is_an_endpoint_that_can_not_be_used(disk: HangingDisk) -> None:
    with pytest.raises(BrokenError, match="the directory /shared/lan does not answer for 10 s"):
        await SharedDirectory("/shared", "lan").open(outside(disk))


async def test_attempts_on_a_directory_that_hangs_take_a_bounded_number_of_threads(disk: HangingDisk) -> None:
    env = outside(disk)
    for _ in range(3 * POOL_THREADS):
        with pytest.raises(BrokenError, match="does not answer"):
            await SharedDirectory("/shared", "lan").open(env)
    assert disk.hung <= POOL_THREADS


async def test_a_directory_that_hangs_takes_no_thread_from_another_one(disk: HangingDisk) -> None:
    env = outside(disk)
    for _ in range(2 * POOL_THREADS):
        with pytest.raises(BrokenError, match="does not answer"):
            await SharedDirectory("/shared", "lan").open(env)
    channel = await SharedDirectory("/elsewhere", "lan").open(env)
    channel.close()


async def test_a_channel_says_so_when_its_directory_hangs_later(disk: HangingDisk) -> None:
    disk.answers.set()
    channel = await SharedDirectory("/shared", "lan").open(outside(disk))
    disk.answers.clear()
    with pytest.raises(BrokenError, match="does not answer"):
        await channel.receive()


async def test_a_node_whose_directory_hangs_stops_all_the_same(
    disk: HangingDisk, caplog: pytest.LogCaptureFixture
) -> None:
    place = SharedDirectory("/shared", "lan")
    group = DiscoveryGroup("found", place)
    services = [group, BroadcastGroup("told", place, connectors=["own"])]
    network = MemoryNetwork(random.Random(1))
    env = attrs.evolve(outside(disk), network=network.host("a"), local={})
    url = "tcp://a:5000?insecure=true"
    with trio.fail_after(PATIENCE_S * 10):
        async with Broker("a", data_dir=None, acceptors=[], connectors={"own": url}, services=services, env=env):
            await trio.sleep(30.0)
            assert group.nodes() == ()
            assert disk.hangs.wait(PATIENCE_S)
    events = {getattr(one, "event", "") for one in caplog.records}
    assert {"cannot_listen", "cannot_announce"} <= events
