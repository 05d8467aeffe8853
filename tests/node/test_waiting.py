"""A broker that waits: announced and reachable, its store closed, no client served; and its turns as the active one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from meshq import Broker, BrokerStateChanged, Client, NotActiveError, SettingsError, abc, connect
from meshq.client import FailedOver
from meshq.concurrency import first_error
from meshq.env import real_env
from meshq.errors import ConnectionBrokenError, MeshqError, UsageError
from meshq.testing import InlineThreads, MemoryNetwork, MemoryRole, SimDisk
from tests.node.test_services import Own

TCP = "tcp://127.0.0.1:0"


class Ground:
    """A network, and hosts with one disk."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(random.Random(1))
        self.disk = SimDisk()
        self.role = MemoryRole(vacant=False)

    def env(self) -> abc.Env:
        parts = {"network": self.network.host("node"), "disk": self.disk.mount(), "threads": InlineThreads()}
        return attrs.evolve(real_env(), local={}, **parts)

    def broker(self, name: str = "hq", *, wait_for_activation: bool = False, **settings: Any) -> Broker:
        ha = self.role.policy(wait_for_activation=wait_for_activation)
        given = {"data_dir": "/data", "acceptors": [TCP], "ha": ha, "env": self.env(), **settings}
        return Broker(name, **given)

    def unlocked(self) -> bool:
        """Whether another process may have the store."""
        file = self.disk.mount().open("/data/lock")
        try:
            return file.lock()
        finally:
            file.close()


@asynccontextmanager
async def running() -> AsyncIterator[Ground]:
    ground = Ground()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.network.run)
        yield ground
        nursery.cancel_scope.cancel()


def url_of(broker: Broker) -> str:
    (url,) = broker.urls
    return url


async def until(broker: Broker, state: str) -> None:
    """Wait until the broker is in a state."""
    states = broker.events()
    while broker.state != state:
        await anext(states)


async def refused(client: Client) -> MeshqError:
    """Connect, and return the answer of the node."""
    with pytest.raises(ConnectionBrokenError) as caught:
        async with client:
            raise AssertionError("a node that waits has let a client in")
    assert caught.value.outcome == "not_done"
    assert isinstance(caught.value.__cause__, NotActiveError)
    return caught.value.__cause__


async def test_a_broker_that_waits_is_reachable_with_its_store_closed_and_serves_no_client() -> None:
    async with running() as ground:
        clock = Own("tick")
        async with ground.broker(services=[clock]) as broker:
            assert broker.state == "waiting"
            assert clock.announced == 1 and not clock.served
            assert not ground.disk.files()
            error = await refused(connect(url_of(broker), env=ground.env()))
            assert str(error) == "the node is not active: the broker 'hq' waits until it may be active"
            await refused(connect("inproc://hq", env=broker._environment()))
            await refused(broker.client(reconnect_attempts=0))
            for look in (broker.statistics, lambda: broker.explain_route("q")):
                with pytest.raises(NotActiveError, match="the broker 'hq' is waiting"):
                    look()
        assert broker.state == "stopped"


async def test_a_broker_is_active_waits_and_is_active_again_at_the_same_port_with_the_same_store() -> None:
    async with running() as ground:
        clock = Own("tick")
        async with ground.broker(services=[clock]) as broker:
            url = url_of(broker)
            states = broker.events()
            ground.role.open()
            async with connect(url, env=ground.env(), retry_interval=0.01, initial_connect_attempts=100) as client:
                assert (broker.state, url_of(broker), clock.served) == ("active", url, True)
                assert not ground.unlocked()
                node_id = broker.node_id
                changes = client.events()
                await client.send("q", b"1")
                ground.role.take_back("the other one is there")
                await until(broker, "waiting")
                assert ground.unlocked() and url_of(broker) == url and not clock.served
                await refused(connect(url, env=ground.env()))
                ground.role.open()
                await client.send("q", b"2")
                assert (broker.state, broker.node_id, clock.served) == ("active", node_id, True)
                lost = await anext(changes)
                assert "steps back (the other one is there)" in str(lost.reason)  # type: ignore[union-attr]
                assert isinstance(await anext(changes), FailedOver)
                async with client.consumer("q") as consumer:
                    assert [one.body for one in await consumer.receive_many(2, timeout=5)] == [b"1", b"2"]
        seen = [event.state async for event in states if isinstance(event, BrokerStateChanged)]
        assert " ".join(seen) == "starting active waiting starting active stopping stopped"
        assert ground.unlocked()


async def test_a_node_that_steps_back_at_once_says_no_good_bye_and_loses_nothing_that_was_confirmed() -> None:
    async with running() as ground:
        ground.role.open()
        async with (
            ground.broker(wait_for_activation=True) as broker,
            connect(url_of(broker), env=ground.env(), retry_interval=0.01) as client,
        ):
            changes = client.events()
            await client.send("q", b"1")
            ground.role.take_back("superseded", at_once=True)
            ground.role.open()
            await client.send("q", b"2")
            assert "ended by the other side" in str((await anext(changes)).reason)  # type: ignore[union-attr]
            assert (await client.queue("q")).ready == 2


async def test_a_block_that_waits_for_the_activation_is_entered_when_the_node_is_active() -> None:
    async with running() as ground:
        broker = ground.broker(wait_for_activation=True)
        with trio.move_on_after(3_600) as scope:
            async with broker:
                raise AssertionError("the node is not active")
        assert scope.cancelled_caught
        assert broker.state == "stopped"
        ground.role.open()
        async with ground.broker(wait_for_activation=True) as broker:
            assert broker.state == "active"


async def test_two_brokers_with_one_store_are_active_by_turns() -> None:
    async with running() as ground:
        ground.role.open()
        async with (
            ground.broker("first", wait_for_activation=True) as first,
            ground.broker("second") as second,
        ):
            urls = f"({url_of(first)},{url_of(second)})"
            async with connect(urls, env=ground.env(), retry_interval=0.01) as client:
                await client.send("q", b"1")
                assert (first.state, second.state, ground.role.holder) == ("active", "waiting", "first")
                await first.stop(failover=True)
                await client.send("q", b"2")
                assert (first.state, second.state, ground.role.holder) == ("stopped", "active", "second")
                assert ground.role.failover
                assert (await client.queue("q")).ready == 2


class BriefPolicy(abc.HAPolicy):
    """The node has to step back as soon as it may be active, so many times."""

    wait_for_activation = True

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.released = 0

    @asynccontextmanager
    async def activation(self, control: abc.NodeControl) -> AsyncIterator[abc.Activation]:  # type: ignore[override]
        yield BriefActivation(self)


class BriefActivation(abc.Activation):
    def __init__(self, policy: BriefPolicy) -> None:
        self._policy = policy

    async def wait(self) -> abc.ActiveTerm:
        await trio.lowlevel.checkpoint()
        if self._policy.turns < 0:
            raise ConnectionBrokenError("the arbiter is gone")
        return abc.ActiveTerm(data_dir="/elsewhere")

    async def lost(self) -> abc.StepBack:
        await trio.lowlevel.checkpoint()
        if self._policy.turns == 0:
            await trio.sleep_forever()
        self._policy.turns -= 1
        return abc.StepBack(reason="superseded")

    async def release(self, *, failover: bool) -> None:
        assert not failover
        self._policy.released += 1


class SlowThreads(InlineThreads):
    """Threads whose calls wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = trio.Event()
        self.gate.set()

    async def run(self, function: Any, *arguments: Any, pool: str = "default") -> Any:
        with trio.CancelScope(shield=True):
            await self.gate.wait()
        return await super().run(function, *arguments, pool=pool)


@pytest.mark.parametrize("before", ["", "stop", "step back"])
@pytest.mark.parametrize("inproc", [True, False], ids=["in process", "over the network"])
async def test_from_the_order_to_step_back_at_once_no_confirm_and_no_message_leaves_the_node(
    before: str, inproc: bool
) -> None:
    async with running() as ground, trio.open_nursery() as nursery:
        threads, outcomes = SlowThreads(), list[str]()
        broker = ground.broker(env=attrs.evolve(ground.env(), threads=threads), wait_for_activation=True)
        ground.role.open()
        await nursery.start(broker.run)
        url = url_of(broker)
        client = broker.client(reconnect_attempts=0) if inproc else connect(url, env=ground.env(), reconnect_attempts=0)

        async def send() -> None:
            with pytest.raises(MeshqError) as caught:
                await client.send("q", b"late")
            outcomes.append(caught.value.outcome)

        with suppress(MeshqError):
            async with client:
                await client.send("q", b"early")
                threads.gate = trio.Event()
                nursery.start_soon(send)
                await trio.testing.wait_all_tasks_blocked()
                if before == "stop":
                    nursery.start_soon(broker.stop)
                elif before:
                    ground.role.take_back("asked to")
                await trio.testing.wait_all_tasks_blocked()
                ground.role.take_back("superseded", at_once=True)
                await trio.testing.wait_all_tasks_blocked()
                with suppress(MeshqError):
                    async with broker.client(reconnect_attempts=0):
                        outcomes.append("a node that is not active any more took a client")
                threads.gate.set()
                await trio.testing.wait_all_tasks_blocked()
        threads.gate.set()
        if before != "stop":
            await until(broker, "waiting")
        await broker.stop()
        assert outcomes == ["unknown"]
        assert broker.state == "stopped"


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_broker_that_is_stopped_while_it_steps_back_is_stopped(at_once: bool) -> None:
    async with running() as ground, trio.open_nursery() as nursery:
        threads = SlowThreads()
        broker = ground.broker(env=attrs.evolve(ground.env(), threads=threads), wait_for_activation=True)
        states = broker.events()
        ground.role.open()
        await nursery.start(broker.run)
        async with broker.client() as client:
            await client.send("q", b"1")
            threads.gate = trio.Event()
            ground.role.take_back("asked to", at_once=at_once)
            await trio.testing.wait_all_tasks_blocked()
            if at_once:
                with pytest.raises(NotActiveError, match="the broker 'hq' is stepping back"):
                    broker.statistics()
            nursery.start_soon(broker.stop)
            await trio.testing.wait_all_tasks_blocked()
            threads.gate.set()
        await broker.stop()
        seen = [event.state async for event in states if isinstance(event, BrokerStateChanged)]
        assert (broker.state, seen[-2:]) == ("stopped", ["stopping", "stopped"])


class OddPolicy(abc.HAPolicy):
    """A policy whose answers a test says, and whose release has no end."""

    wait_for_activation = False

    def __init__(self, term: Any, order: Any) -> None:
        self.term, self.order = term, order
        #: What each release was told.
        self.released: list[bool] = []

    @asynccontextmanager
    async def activation(self, control: abc.NodeControl) -> AsyncIterator[Any]:
        yield self

    async def wait(self) -> Any:
        return self.term

    async def lost(self) -> Any:
        if self.order == "never":
            await trio.sleep_forever()
        return self.order

    async def release(self, *, failover: bool) -> None:
        self.released.append(failover)
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("term", "order", "text"),
    [
        (None, "never", r"wait\(\) returned None; allowed is an ActiveTerm"),
        (abc.ActiveTerm(data_dir=7), "never", r"wait\(\) returned ActiveTerm\(data_dir=7"),  # type: ignore[arg-type]
        (abc.ActiveTerm(sink=7), "never", "has 7 as its sink; allowed is a ReplicationSink"),  # type: ignore[arg-type]
        (abc.ActiveTerm(), None, r"lost\(\) returned None; allowed is a StepBack"),
    ],
)
async def test_a_policy_that_answers_something_else_is_told_what_is_allowed(term: Any, order: Any, text: str) -> None:
    async with running() as ground:
        broker = ground.broker(ha=OddPolicy(term, order), stop_timeout=0)
        with pytest.raises(UsageError, match=text):
            async with broker:
                await trio.sleep_forever()
        assert broker.state == "failed"


class OddBlock(abc.HAPolicy):
    """A policy whose block is what a test says."""

    wait_for_activation = True

    def __init__(self, block: Any) -> None:
        self.block = block

    def activation(self, control: abc.NodeControl) -> Any:
        return self.block


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (None, r"activation\(\) returned None; allowed is an async context manager"),
        (nullcontext(), r"activation\(\) gave None; allowed is an Activation"),
        (nullcontext("wait"), r"activation\(\) gave 'wait'; allowed is an Activation"),
    ],
)
async def test_a_policy_whose_block_is_something_else_is_told_what_is_allowed(block: Any, text: str) -> None:
    async with running() as ground:
        broker = ground.broker(ha=OddBlock(block), stop_timeout=0)
        with pytest.raises(UsageError, match=text):
            async with broker:
                await trio.sleep_forever()
        assert broker.state == "failed"


@pytest.mark.parametrize("setting", [None, "no", 1])
async def test_a_policy_that_does_not_say_for_what_the_block_waits_is_refused(setting: Any) -> None:
    policy = OddBlock(nullcontext())
    policy.wait_for_activation = setting
    with pytest.raises(SettingsError, match="wait_for_activation is True or False"):
        Broker("a", data_dir=None, ha=policy)


async def test_a_release_has_the_time_of_a_stop_and_is_told_once_and_for_all_to_hand_over() -> None:
    async with running() as ground, trio.open_nursery() as nursery:
        policy = OddPolicy(abc.ActiveTerm(), "never")
        broker = ground.broker(ha=policy, stop_timeout=0)
        nursery.start_soon(broker.run)
        await until(broker, "active")
        with trio.move_on_after(0):
            await broker.stop(failover=True)
        await broker.stop()
        assert (broker.state, policy.released) == ("stopped", [True])


class EndlessPolicy(OddPolicy):
    """A policy whose block never ends, and whose release does."""

    @asynccontextmanager
    async def activation(self, control: abc.NodeControl) -> AsyncIterator[Any]:
        try:
            yield self
        finally:
            await trio.sleep_forever()

    async def release(self, *, failover: bool) -> None:
        self.released.append(failover)


async def test_a_policy_that_does_not_end_its_block_is_cancelled_after_the_stop_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as ground, trio.open_nursery() as nursery:
        policy = EndlessPolicy(abc.ActiveTerm(), "never")
        broker = ground.broker(ha=policy, stop_timeout=7)
        nursery.start_soon(broker.run)
        await until(broker, "active")
        begun = trio.current_time()
        with trio.fail_after(3_600):
            await broker.stop()
        assert trio.current_time() - begun == 7
        assert (broker.state, policy.released) == ("stopped", [False])
    said = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "policy_cancelled"]
    assert said == ["the policy of ha= did not end its block within the stop timeout of 7 s, and was cancelled"]


async def test_a_broker_that_fails_says_why_although_its_policy_does_not_end_its_block() -> None:
    async with running() as ground:
        policy = EndlessPolicy(abc.ActiveTerm(), "never")
        broker = ground.broker(ha=policy, services=[Own("tick", fails=True)])
        with pytest.raises(ExceptionGroup) as caught, trio.fail_after(3_600):
            await broker.run()
        assert str(first_error(caught.value)) == "the clock is broken"
        assert broker.state == "failed"


async def test_a_node_that_has_to_step_back_before_it_is_active_waits_again() -> None:
    async with running() as ground:
        policy = BriefPolicy(3)
        broker = ground.broker(ha=policy)
        states = broker.events()
        async with broker:
            assert (broker.state, policy.released) == ("active", 3)
            assert {path.split("/")[1] for path in ground.disk.files()} == {"elsewhere"}
        seen = [event.state async for event in states if isinstance(event, BrokerStateChanged)]
        assert seen == ["starting", *["waiting", "starting"] * 4, "active", "stopping", "stopped"]
        assert policy.released == 4


async def test_what_a_policy_raises_ends_the_broker() -> None:
    async with running() as ground:
        broker = ground.broker(ha=BriefPolicy(-1))
        with pytest.raises(ConnectionBrokenError, match="the arbiter is gone"):
            async with broker:
                pass
        assert (broker.state, broker.urls) == ("failed", [])


async def test_a_broker_that_fails_while_it_is_active_gives_the_role_up() -> None:
    async with running() as ground:
        ground.role.open()
        with pytest.raises(RuntimeError, match="the clock is broken"):
            async with ground.broker(wait_for_activation=True, services=[Own("tick", fails=True)]) as broker:
                await trio.sleep_forever()
        assert (broker.state, ground.role.holder) == ("failed", None)
        assert ground.unlocked()


async def test_a_port_that_is_taken_is_found_out_while_the_node_waits() -> None:
    async with running() as ground, ground.broker() as broker:
        with pytest.raises(ConnectionBrokenError, match="can't be bound"):
            async with ground.broker("second", acceptors=[url_of(broker)]):
                pass


def test_a_policy_is_a_policy() -> None:
    with pytest.raises(SettingsError, match="ha="):
        Broker("hq", data_dir=None, ha=7)  # type: ignore[arg-type]


async def test_a_broker_without_a_policy_never_waits() -> None:
    broker = Broker("hq", data_dir=None)
    states = broker.events()
    async with broker:
        assert broker.state == "active"
    seen = [event.state async for event in states if isinstance(event, BrokerStateChanged)]
    assert seen == ["starting", "active", "stopping", "stopped"]
