"""Messages that do not move although somebody wants them: found with their cause, in brokers, and told."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from meshq import AddressSettings, ClusterConnection, MessagesStuck, NotActiveError, SettingsError
from meshq.broker.management import _held_messages
from tests.cluster.nodes import Nodes, connection, nodes
from tests.cluster.test_hops import connections, way

T = 4.0
#: Until something that stands is found, told, and other nodes have answered.
FOUND_S = 4 * T

AT_ONCE = {"#": AddressSettings(redistribution_delay=0.0)}


@asynccontextmanager
async def pair(mode: str = "on_demand", settings: Mapping[str, AddressSettings] = AT_ONCE) -> AsyncIterator[Nodes]:
    about: dict[str, Any] = {"load_balancing": mode, "stuck_timeout": T}
    made_by: dict[str, Sequence[ClusterConnection]] = {
        "a": [connection("a", ["b"], **about)],
        "b": [connection("b", ["a"], **about)],
    }
    own = {name: {"address_settings": settings} for name in made_by}
    async with nodes(made_by, queues=["q"], **own) as made:
        await made.known("a").wait_for(nodes=2, queue="q", queues=2)
        yield made


def causes(made: Nodes, node: str = "a") -> list[tuple[str, str]]:
    return [(one.queue, one.cause) for one in made.known(node).stuck()]


async def test_what_nobody_wants_is_not_stuck() -> None:
    async with pair() as made:
        await made.send("a", "q", 3)
        await trio.sleep(FOUND_S)
        assert causes(made) == []


async def test_balancing_that_is_off_is_the_cause() -> None:
    async with pair("off") as made, made.brokers["b"].client() as there, there.consumer("q"):
        await made.known("a").wait_for(queue="q", consumers=1)
        await made.send("a", "q", 3)
        await trio.sleep(FOUND_S)
        assert causes(made) == [("q", "balancing_off")] and causes(made, "b") == []
        (stuck,) = made.known("a").stuck()
        assert stuck.messages == 3 and stuck.seconds >= T and stuck.first
        assert stuck.node_ids == (made.brokers["b"].node_id.hex() if made.brokers["b"].node_id else "",)


async def test_redistribution_that_is_off_and_its_delay_are_causes() -> None:
    never, later = {"#": AddressSettings()}, {"#": AddressSettings(redistribution_delay=100.0)}
    for settings, cause in ((never, "no_redistribution"), (later, "delay")):
        async with pair(settings=settings) as made, made.brokers["b"].client() as there:
            await made.send("a", "q", 1)
            async with there.consumer("q"):
                await trio.sleep(FOUND_S)
                assert causes(made) == [("q", cause)]


async def test_filters_here_and_there_are_the_cause() -> None:
    async with pair() as made, made.brokers["a"].client() as here, made.brokers["b"].client() as there:
        await made.send("a", "q", 1)
        async with there.consumer("q", filter="x = 1"):
            await trio.sleep(FOUND_S)
            assert causes(made) == [("q", "filter")]
            async with here.consumer("q", filter="x = 2"):
                await trio.sleep(FOUND_S)
                assert causes(made) == [("q", "filter")]
                (stuck,) = made.known("a").stuck()
                assert "here" in stuck.why


async def test_a_consumer_with_a_full_window_is_the_cause_and_none_while_it_goes_on() -> None:
    async with pair() as made, made.brokers["a"].client() as here, here.consumer("q", window=1) as consumer:
        await made.send("a", "q", 9)
        for _ in range(6):
            delivery = await consumer.receive(timeout=1)
            assert delivery is not None
            await trio.sleep(T / 2)
            assert causes(made) == []
            await delivery.ack()
        await trio.sleep(FOUND_S)
        assert causes(made) == [("q", "flow_control")]


async def test_a_prepared_transaction_that_is_not_decided_is_the_cause() -> None:
    async with pair() as made, made.brokers["a"].client() as here, here.consumer("q") as consumer:
        await made.send("a", "q", 1)
        transaction = here.transaction(xid=b"one")
        async with transaction:
            delivery = await consumer.receive(timeout=1)
            assert delivery is not None
            await transaction.ack(delivery)
            await transaction.prepare()
        await trio.sleep(FOUND_S)
        assert causes(made) == [("q", "prepared")]
        assert b"one".hex() in made.known("a").stuck()[0].why
        await here.commit(b"one")
        await trio.sleep(FOUND_S)
        assert causes(made) == []


async def test_messages_that_were_handed_back_wait_for_their_delay() -> None:
    later = {"#": AddressSettings(redelivery_delay=100.0)}
    async with pair(settings=later) as made, made.brokers["a"].client() as here, here.consumer("q") as consumer:
        await made.send("a", "q", 1)
        delivery = await consumer.receive(timeout=1)
        assert delivery is not None
        await delivery.nack()
        await trio.sleep(FOUND_S)
        assert causes(made) == [("q", "delay")]


async def test_a_paused_queue_is_the_cause() -> None:
    async with pair() as made, made.brokers["a"].client() as here, here.consumer("q"):
        await here.pause_queue("q")
        await made.send("a", "q", 1)
        await trio.sleep(FOUND_S)
        assert causes(made) == [("q", "paused")]


async def test_too_few_hops_are_the_cause() -> None:
    made_by = connections(way("abc", both=True), stuck_timeout=T)
    async with nodes(made_by) as made, made.brokers["c"].client() as there, there.consumer("q"):
        async with made.brokers["a"].client() as here:
            await here.create_queue("q")
            await here.send("q", b"x")
        await trio.sleep(FOUND_S)
        assert causes(made) == [("q", "hop_limit")]
        assert made.known("a").stuck()[0].node_ids == (made.known("c").topology()[0].node_id,)


async def test_a_queue_that_a_linked_node_has_and_that_is_not_bound_is_the_cause() -> None:
    async with pair() as made, made.brokers["b"].client() as there, there.consumer("q"):
        await made.known("a").wait_for(queue="q", consumers=1)
        core = made.brokers["a"]._node.core
        (forward,) = [queue for queue in core.router.queues.values() if queue.forwards]
        link = forward.number.to_bytes(8, "big")
        for binding in core.router.remote(link):
            core.router.unbind(link, binding.number)
        await made.send("a", "q", 1)
        await trio.sleep(FOUND_S)
        assert causes(made) == [("q", "missing_binding")]


async def test_a_node_that_does_not_store_what_is_sent_and_one_that_is_gone_are_causes() -> None:
    async with pair() as made:
        async with made.brokers["b"].client() as there, there.consumer("q"):
            await made.known("a").wait_for(queue="q", consumers=1)
            events = made.brokers["a"].events()
            made.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
            await made.send("a", "q", 2)
            await trio.sleep(FOUND_S)
            ((name, cause),) = causes(made)
            assert cause == "flow_control" and name.startswith("$meshq.cluster.mesh.")
        await made.brokers["b"].stop()
        await trio.sleep(FOUND_S)
        assert causes(made) == [(name, "node_gone")]
    told = [(event.queue, event.cause) async for event in events if isinstance(event, MessagesStuck)]
    assert told == [(name, "flow_control"), (name, "node_gone")]


async def test_what_is_stuck_is_told_by_a_notification_and_a_warning_a_minute_and_asked_for_over_any_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        pair("off") as made,
        made.brokers["b"].client() as there,
        there.consumer("q"),
        made.brokers["a"].client() as here,
    ):
        await made.known("a").wait_for(queue="q", consumers=1)
        await made.send("a", "q", 3)
        events = made.brokers["a"].events()
        with caplog.at_level(logging.WARNING):
            told = []
            with trio.move_on_after(75):
                async for event in events:
                    if isinstance(event, MessagesStuck):
                        told.append((event.queue, event.cause, event.messages))
        assert told == [("q", "balancing_off", 3)] * 2
        logged = [one for one in caplog.records if getattr(one, "event", "") == "messages_stuck"]
        assert len(logged) == 2 and "load_balancing is 'off'" in logged[0].getMessage()
        assert await here.stuck() == list(made.known("a").stuck()) != []


async def test_nothing_is_looked_for_without_a_timeout_and_while_the_broker_is_not_active() -> None:
    made_by = {"a": [connection("a", [], stuck_timeout=float("inf"))]}
    async with nodes(made_by, queues=["q"]) as made, made.brokers["a"].client() as here, here.consumer("q"):
        await here.pause_queue("q")
        await made.send("a", "q", 1)
        await trio.sleep(50)
        assert made.known("a").stuck() == ()
    with pytest.raises(NotActiveError):
        made.known("a").stuck()
    with pytest.raises(SettingsError, match="stuck_timeout"):
        connection("a", [], stuck_timeout=0.0)


async def test_a_look_at_a_long_queue_looks_at_its_first_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as made, made.brokers["a"].client() as here, here.consumer("q", window=1) as consumer:
        for _ in range(40):
            await here.send("q", b"x")
        assert await consumer.receive(timeout=1)
        looked = []
        first = _held_messages._first_in
        monkeypatch.setattr(_held_messages, "_first_in", lambda view: looked.append(view) or first(view))
        await trio.sleep(T / 4 + 0.1)
        assert 0 < len(looked) <= _held_messages.RUNS_MAX
