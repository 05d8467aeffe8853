"""A policy gives a term a sink: what the broker confirms and hands out is durable there, too."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from meshq import JournalBrokenError, UsageError
from meshq.errors import BrokenError, MeshqError
from meshq.testing import MemoryRole, MemorySink
from tests.node.test_waiting import Ground, running
from tests.store.test_replication import release_in_an_hour


class Sinks:
    """The sinks of a role, one for each term."""

    def __init__(self, ground: Ground) -> None:
        self.made: list[MemorySink] = []
        ground.role = MemoryRole(make_sink=self._make)

    def _make(self) -> MemorySink:
        self.made.append(MemorySink())
        return self.made[-1]


async def test_confirms_and_deliveries_wait_for_the_sink_of_the_term() -> None:
    async with running() as ground:
        sinks, done = Sinks(ground), list[str]()
        async with (
            ground.broker(wait_for_activation=True, queues=["q"]) as broker,
            broker.client() as client,
            client.consumer("q") as consumer,
            trio.open_nursery() as nursery,
        ):

            async def send() -> None:
                await client.send("q", b"x")
                done.append("confirmed")

            async def receive() -> None:
                await consumer.receive()
                done.append("received")

            (sink,) = sinks.made
            sink.hold()
            nursery.start_soon(send)
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            assert any(b"x" in payload for payload in sink.payloads()) and done == []
            sink.release()
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(done) == ["confirmed", "received"]


async def test_each_term_has_a_sink_of_its_own_that_begins_behind_the_last_one() -> None:
    async with running() as ground:
        sinks = Sinks(ground)
        async with ground.broker(wait_for_activation=True, queues=["q"]) as broker:
            async with broker.client() as client:
                await client.send("q", b"x")
            ground.role.take_back()
            await trio.testing.wait_all_tasks_blocked()
            assert broker.state == "waiting" and [sink.ended for sink in sinks.made] == [True]
            ground.role.open()
            await trio.testing.wait_all_tasks_blocked()
            first, second = sinks.made
            assert broker.state == "active" and second.start is not None
            assert second.start.last == first.batches[-1].last > 0


async def test_a_sink_that_fails_ends_the_broker_and_confirms_nothing() -> None:
    async with running() as ground:
        sinks, outcomes = Sinks(ground), list[str]()
        broker = ground.broker(wait_for_activation=True, queues=["q"])
        with pytest.raises(JournalBrokenError, match="replication failed: no majority"):
            async with broker, broker.client(reconnect_attempts=0) as client, trio.open_nursery() as nursery:

                async def send() -> None:
                    try:
                        await client.send("q", b"x")
                    except MeshqError as error:
                        outcomes.append(error.outcome)
                    else:
                        outcomes.append("confirmed")

                sinks.made[0].hold()
                nursery.start_soon(send)
                await trio.testing.wait_all_tasks_blocked()
                sinks.made[0].fail(BrokenError("no majority"))
        assert broker.state == "failed" and outcomes in ([], ["unknown"])


async def test_a_sink_that_never_answers_holds_up_no_stop_and_nothing_is_confirmed() -> None:
    async with running() as ground, trio.open_nursery() as nursery:
        sinks, outcomes = Sinks(ground), list[str]()
        broker = ground.broker(wait_for_activation=True, queues=["q"], stop_timeout=7)
        await nursery.start(broker.run)

        async def send() -> None:
            try:
                async with broker.client(reconnect_attempts=0) as client:
                    await client.send("q", b"x")
            except MeshqError as error:
                outcomes.append(error.outcome)
            else:
                outcomes.append("confirmed")

        (sink,) = sinks.made
        sink.hold()
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(release_in_an_hour, sink)
        begun = trio.current_time()
        await broker.stop()
        # For what is committed, and for the sink at the end.
        assert trio.current_time() - begun <= 2 * 7
        assert broker.state == "stopped" and ground.unlocked()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert outcomes == ["unknown"]


async def test_a_broker_in_memory_only_has_no_use_for_a_sink() -> None:
    async with running() as ground:
        Sinks(ground)
        with pytest.raises(UsageError, match="in memory only"):
            async with ground.broker(wait_for_activation=True, data_dir=None):
                await trio.sleep_forever()
