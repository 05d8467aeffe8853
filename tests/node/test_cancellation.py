"""Cancellation delivered at every checkpoint of every call of a client, in turn.

A call is made again and again on a broker of its own; the n-th time its task is cancelled while it waits at its n-th
checkpoint, until it ends first.  Each time the outcome is one that its documentation allows, nothing is left (tasks,
producers, consumers, calls without an answer), and the client goes on.
"""

from __future__ import annotations

import inspect
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from meshq import BridgeStatistics, Client, Consumer, Delivery, Producer, Transaction
from meshq.abc import Controllable
from meshq.client.link._events import EventStream
from meshq.client.receive._body_stream import BodyStream
from qa.matrix.sending import Sending
from qa.matrix.stage import House
from tests.node.all_calls import CALLS
from tests.node.calls import Call
from tests.node.ground import Ground

#: No call waits more often than that.
CHECKPOINTS_MAX = 200
#: What has calls that wait.
KINDS = (Client, Producer, Consumer, Delivery, EventStream, BodyStream, Transaction)


@attrs.define(eq=False)
class CancelAt(trio.abc.Instrument):
    """Cancels a scope when a task waits for the n-th time."""

    task: trio.lowlevel.Task
    scope: trio.CancelScope
    left: int

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task and self.left:
            self.left -= 1
            if not self.left:
                self.scope.cancel()


def tasks() -> list[str]:
    """The names of all that runs."""
    root = trio.lowlevel.current_root_task()
    waiting, found = [root] if root is not None else [], []
    while waiting:
        task = waiting.pop()
        found.append(task.name)
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(found)


async def make(ground: Ground, call: Call, checkpoint: int, prepared: Any) -> bool:
    """Make a call that is cancelled at its n-th checkpoint; whether it was."""
    with trio.CancelScope() as scope:
        instrument = CancelAt(trio.lowlevel.current_task(), scope, checkpoint)
        trio.lowlevel.add_instrument(instrument)
        try:
            await call.make(ground, prepared)
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return instrument.left == 0


async def check_left(ground: Ground, before: dict[str, Any]) -> None:
    """Nothing is left of the call, and the client goes on."""
    await ground.client.flush()
    await trio.testing.wait_all_tasks_blocked()
    after = what_is_there(ground)
    assert {name: value for name, value in after.items() if value != before[name]} == {}
    await ground.client.send("later", b"x")
    async with ground.client.consumer("later") as consumer:
        message = await consumer.receive(timeout=5)
        assert message is not None
        await message.ack(confirm=True)


def what_is_there(ground: Ground) -> dict[str, Any]:
    """Everything that a call could leave behind."""
    found = ground.client.statistics()
    return {
        "tasks": tasks(),
        "producers": found.producers,
        "consumers": found.consumers,
        "unconfirmed": (found.unconfirmed, found.waiting_runs, found.requests),
        "calls": len(ground.client._session.pending_calls._pending) + len(ground.client._session.pending_calls.unsent),
        "sessions": ground.broker.statistics().sessions,
    }


async def make_and_look(ground: Ground, call: Call, checkpoint: int) -> bool:
    """Make it, and see that its outcome is one that may be; whether it was cancelled."""
    prepared = await call.prepare(ground) if call.prepare is not None else None
    # What every client makes with its first message, and the first request.
    await ground.client.send("first", b"x")
    if "request" in call.name:
        await ground.client.request("questions", b"?", timeout=5)
    await ground.client.flush()
    await trio.testing.wait_all_tasks_blocked()
    before = what_is_there(ground)
    cancelled = await make(ground, call, checkpoint, prepared)
    await ground.client.flush()
    await trio.testing.wait_all_tasks_blocked()
    found = await call.look(ground)
    assert found in call.outcomes, f"{call.name} at checkpoint {checkpoint}: {found}"
    assert cancelled or found == call.outcomes[-1], f"{call.name} ended: {found}"
    await check_left(ground, before)
    return cancelled


class Switch(Controllable):
    """What can be paused, and does nothing else; it begins paused."""

    name = "b"

    def __init__(self) -> None:
        self._state = "paused"

    def statistics(self) -> BridgeStatistics:
        counts = {"carried": 0, "refused": 0, "failed": 0, "ended": 0, "rejected": 0}
        about: dict[str, Any] = {"queue": "q", "target": "t", "forwarding_address": None, "last_error": None}
        return BridgeStatistics(name=self.name, state=self._state, **counts, **about)

    def pause(self) -> None:
        self._state = "paused"

    def resume(self) -> None:
        self._state = "carrying"


async def attempt(call: Call, checkpoint: int, *, tcp: bool) -> bool:
    """One call on a broker of its own; whether it was cancelled."""
    house = House({}, durable=True, tcp=tcp, sending=Sending())
    async with house.life() as stage, stage.another() as other:  # noqa: SIM117
        async with trio.open_nursery() as nursery:
            broker = house.broker
            assert broker is not None
            node = broker._node
            assert node is not None
            node.core.settings.controlled["b"] = Switch()
            ground = Ground(broker, stage.client, other, nursery, stage.another)
            try:
                cancelled = await make_and_look(ground, call, checkpoint)
            finally:
                await ground.leave()
    return cancelled


def says_always(name: str) -> bool:
    """Whether the documentation of a call promises a checkpoint."""
    kind, _, method = name.partition(",")[0].partition(".")
    found = getattr({one.__name__: one for one in KINDS}[kind], method, None)
    return "Checkpoint: always" in (inspect.getdoc(found) or "")


@pytest.mark.parametrize("line", ["in process", "tcp"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
async def test_a_call_that_is_cancelled_at_any_checkpoint_was_made_or_not_and_leaves_nothing(
    call: Call, line: str
) -> None:
    for checkpoint in range(1, CHECKPOINTS_MAX):
        if not await attempt(call, checkpoint, tcp=line == "tcp"):
            assert checkpoint > 1 or not says_always(call.name), "it says that it is always a checkpoint"
            return
    raise AssertionError(f"{call.name} waits more than {CHECKPOINTS_MAX} times")


def test_there_is_a_case_for_every_call_that_waits() -> None:
    """A call that is new must be added."""
    made = {name for call in CALLS for name in call.name.replace(",", "").split()}
    waits = {
        f"{kind.__name__}.{name}"
        for kind in KINDS
        for name, member in inspect.getmembers(kind)
        if inspect.iscoroutinefunction(member) and (not name.startswith("_") or name in ("__anext__", "__aenter__"))
    }
    assert waits <= made, waits - made
