"""A redistributor is told of each queue whose messages may be free to move, or no longer, whatever the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import trio

from meshq import AddressSettings, MeshqError, Message, UsageError, abc
from meshq.broker.management._queue_deletion import remove_when_moved
from meshq.broker.work._long_operations import LongOperation
from meshq.cluster._redistributor import Redistributor
from meshq.node._stranded_messages import LocalStrandedMessages
from tests.cluster.kit import Mesh, bodies
from tests.cluster.test_redistribution import SETTLED_S, numbered, redistributing


def told(nodes: Mesh, name: str) -> list[str]:
    """The names of queues that the watchers of a node are told from now on."""
    names: list[str] = []
    nodes.brokers[name]._node.core.router.demand.mobility_watchers.append(names.append)
    return names


async def test_a_setting_that_is_changed_while_nothing_waits_begins_the_delay_anew() -> None:
    async with redistributing(delay_s=5.0) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await here.send("q", Message(b"due later", delay=12.0))
        async with there.consumer("q") as consumer:
            await trio.sleep(10)
            await here.set_address_settings("q", AddressSettings(redistribution_delay=None))
            await here.set_address_settings("q", AddressSettings(redistribution_delay=5.0))
            changed = trio.current_time()
            found = await consumer.receive(timeout=20)
            assert found is not None and found.body == b"due later"
            assert 5.0 <= trio.current_time() - changed < 5.5


async def test_messages_go_on_when_the_deletion_of_their_queue_was_given_up() -> None:
    async with redistributing() as nodes, nodes.client("a") as there:
        await nodes.send("b", numbered(10))
        core = nodes.brokers["b"]._node.core
        queue, moves = core.router.queues["q"], core.mover.pending_moves
        number, errors, looks = moves.begin(queue), list[MeshqError](), iter([False, True])

        def see_to() -> None:
            if next(looks):
                raise UsageError("somebody uses it")

        steps = remove_when_moved(core, queue, see_to)
        assert isinstance(steps, Iterator)
        core.running_operations.schedule(LongOperation(steps, lambda values: None, errors.append))
        async with there.consumer("q") as consumer:
            assert await consumer.receive(timeout=SETTLED_S) is None
            moves.end(queue, number, number)
            assert [str(error) for error in errors] == ["somebody uses it"]
            assert bodies(await consumer.receive_many(10, timeout=SETTLED_S)) == numbered(10)


async def test_a_link_that_is_lost_is_told_of() -> None:
    async with redistributing() as nodes, nodes.client("a") as there, there.consumer("q"):
        await nodes.joined(queue="q", consumers=1)
        core, names = nodes.brokers["b"]._node.core, told(nodes, "b")
        (keeper,) = nodes.known("b")._keepers.values()
        keeper.peer._let_go()
        assert names == ["q"]
        assert core.mover.redistribution.takers(core.router.queues["q"]) == []


async def test_a_pause_and_a_move_are_told_of() -> None:
    async with redistributing() as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await nodes.send("b", numbered(10))
        names = told(nodes, "b")
        await here.pause_queue("q")
        assert names == ["q"]
        async with there.consumer("q") as consumer:
            await nodes.known("b").wait_for(queue="q", consumers=1, timeout=5)
            names.clear()
            await here.resume_queue("q")
            assert bodies(await consumer.receive_many(10, timeout=SETTLED_S)) == numbered(10)
            assert names == ["q", "q"]


async def test_a_dispatch_that_brings_no_message_is_not_told_of() -> None:
    async with redistributing() as nodes:
        await nodes.send("b", numbered(10))
        core, names = nodes.brokers["b"]._node.core, told(nodes, "b")
        for _ in range(3):
            core.pending.schedule_dispatch(core.router.queues["q"])
            core.pending.run()
        assert names == []
        await nodes.send("b", numbered(1))
        assert names == ["q"]


class Stranded(abc.StrandedMessages):
    """Queues of two addresses that are stranded, and notes which of these are moved."""

    def __init__(self) -> None:
        self.moved: list[str] = []

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call the watcher once for each queue."""
        for queue in ("mine", "another's"):
            watcher(queue)

    def stranded(self, queue: str) -> abc.StrandedQueue:
        """A queue has one message."""
        return abc.StrandedQueue(address=queue, messages=1, delay=1.0)

    async def move(self, queue: str, limit: int) -> int:
        """Note the queue."""
        self.moved.append(queue)
        await trio.lowlevel.checkpoint()
        return 1


async def test_a_connection_leaves_the_queues_of_addresses_alone_that_another_connection_shares() -> None:
    stranded = Stranded()
    redistributor = Redistributor(stranded, lambda address: address == "mine", lambda *warning: None)
    async with trio.open_nursery() as nursery:
        redistributor.begin(nursery)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert stranded.moved == ["mine"]


async def test_a_redistributor_is_told_nothing_any_more_before_its_tasks_can_begin_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(Redistributor):
        def end(self) -> None:
            # A queue of which it is told in the last moment begins a task.
            assert self._nursery is not None
            self._nursery.start_soon(trio.lowlevel.checkpoint)
            ended.append(True)
            super().end()

    ended: list[bool] = []
    monkeypatch.setattr("meshq.cluster._cluster_connection.Redistributor", Late)
    async with redistributing() as nodes:
        await nodes.stop("b", "a")
        assert len(ended) == 2


async def test_other_consumers_elsewhere_and_room_are_another_demand_and_more_of_the_same_are_not() -> None:
    async with redistributing() as nodes, nodes.client("a") as there:
        await nodes.send("b", numbered(1))
        core = nodes.brokers["b"]._node.core
        stranded, green = LocalStrandedMessages(core), "colour = 'green'"

        async def demand() -> object:
            await trio.sleep(1)
            found = stranded.stranded("q")
            assert found is not None
            return found.demand

        async with there.consumer("q", filter=green):
            first = await demand()
            async with there.consumer("q", filter=green):
                assert await demand() == first
            async with there.consumer("q", filter="colour = 'red'"):
                assert await demand() != first
            assert await demand() == first
            redistribution, forward = core.mover.redistribution, core.router.queues[nodes.forward("a")]
            redistribution._full[forward] = None
            redistribution.freed(forward)
            assert await demand() != first
