"""A broker that is stopped before it is active: the stop ends, and the caller who waits for the start is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
import trio
import trio.testing

from meshq import Broker, BrokerStateChanged, NotActiveError, abc, blocking, connect
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.testing import MemoryRole
from tests.node.test_waiting import running


class NeverStarted(abc.Service):
    """A service that never reports that it runs."""

    kind: ClassVar[str] = "clock"
    name = "tick"

    def announce(self, control: abc.NodeControl) -> None:
        pass

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep_forever()


def broker_that_never_starts(vacant: bool | None) -> Broker:
    """Make a broker that waits for its role, or for its service."""
    ha = None if vacant is None else MemoryRole(vacant=vacant).policy()
    return Broker("hq", data_dir=None, services=[NeverStarted()], ha=ha, stop_timeout=0)


WHERE = pytest.mark.parametrize(
    ("vacant", "state"),
    [(None, "starting"), (True, "starting"), (False, "waiting")],
    ids=["starting", "starting by a policy", "waiting"],
)


async def until(broker: Broker, state: str, *, settled: bool = True) -> None:
    """Wait until the broker is in a state; ``settled``: until it stays there."""
    states = broker.events()
    while broker.state != state:
        await anext(states)
    if settled:
        await trio.testing.wait_all_tasks_blocked()


@WHERE
@pytest.mark.parametrize("inthread", [False, True], ids=["", "in a thread"])
async def test_who_enters_the_block_is_told_that_the_broker_was_stopped(
    vacant: bool | None, state: str, inthread: bool
) -> None:
    broker = broker_that_never_starts(vacant)
    used = broker.run_in_thread() if inthread else broker
    states = broker.events()
    async with trio.open_nursery() as nursery:

        async def stop() -> None:
            async for event in states:
                if isinstance(event, BrokerStateChanged) and event.state == state:
                    break
            if not inthread:
                await trio.testing.wait_all_tasks_blocked()
            await used.stop()
            assert broker.state == "stopped"

        nursery.start_soon(stop)
        with pytest.raises(ClosedError, match="the broker 'hq' was stopped before it has started"):
            async with used:
                raise AssertionError("a broker that has not started was entered")


@WHERE
async def test_a_task_that_waits_for_no_start_just_returns(vacant: bool | None, state: str) -> None:
    broker = broker_that_never_starts(vacant)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.run)
        await until(broker, state)
        await broker.stop()
    assert broker.state == "stopped"


async def test_a_block_that_was_entered_while_the_broker_waits_is_left_while_the_broker_starts() -> None:
    role = MemoryRole(vacant=False)
    broker = Broker(
        "hq", data_dir=None, services=[NeverStarted()], ha=role.policy(wait_for_activation=False), stop_timeout=0
    )
    states = broker.events()
    async with broker:
        role.open()
        await until(broker, "starting")
    assert (broker.state, role.holder) == ("stopped", None)
    seen = [event.state async for event in states if isinstance(event, BrokerStateChanged)]
    assert seen == ["starting", "waiting", "starting", "stopping", "stopped"]


@pytest.mark.parametrize("by_policy", [False, True], ids=["", "by a policy"])
async def test_a_client_that_came_before_the_node_is_active_is_told_that_the_node_stops(by_policy: bool) -> None:
    async with running() as ground, trio.open_nursery() as nursery:
        ground.role.open()
        url = "tcp://127.0.0.1:61616"
        settings = {} if by_policy else {"ha": None}
        broker = ground.broker(services=[NeverStarted()], acceptors=[url], **settings)
        nursery.start_soon(broker.run)
        await until(broker, "starting")
        with pytest.raises(ConnectionBrokenError) as caught:
            async with connect(url, env=ground.env(), reconnect_attempts=0):
                await broker.stop()
                await trio.sleep_forever()
        assert isinstance(caught.value.__cause__, NotActiveError)
        assert str(caught.value.__cause__) == "the node 'hq' is stopping"
        assert broker.state == "stopped"


class NeverJoined(abc.HAPolicy):
    """A policy that lets no broker join."""

    wait_for_activation = True

    @asynccontextmanager
    async def activation(self, control: abc.NodeControl) -> AsyncIterator[abc.Activation]:  # type: ignore[override]
        await trio.sleep_forever()
        raise AssertionError("the policy let a broker join")
        yield


@pytest.mark.parametrize("after", range(12))
async def test_a_stop_ends_also_a_broker_whose_policy_does_not_let_it_join(after: int) -> None:
    broker = Broker("hq", data_dir=None, ha=NeverJoined(), stop_timeout=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.run)
        await until(broker, "starting", settled=False)
        for _ in range(after):
            await trio.lowlevel.checkpoint()
        await broker.stop()
    assert broker.state == "stopped"


async def test_a_program_with_threads_is_told_the_same() -> None:
    broker = blocking.Broker("hq", data_dir=None, ha=MemoryRole(vacant=False).policy(), stop_timeout=0)

    def enter() -> None:
        with pytest.raises(ClosedError, match="was stopped before it has started"), broker:
            raise AssertionError("a broker that has not started was entered")

    states = broker.events()

    def stop() -> None:
        for event in states:
            if isinstance(event, BrokerStateChanged) and event.state == "waiting":
                break
        broker.stop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, stop)
        nursery.start_soon(trio.to_thread.run_sync, enter)
