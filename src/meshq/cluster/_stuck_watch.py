"""The watch of a cluster connection over messages that do not move, and over the causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from meshq.abc import HeldQueues, NodeQuestions, NotificationSink
from meshq.cluster._stuck_plan import Cause, Elsewhere, StuckPlan
from meshq.errors import MeshqError
from meshq.notifications import MessagesStuck
from meshq.statistics import StuckMessages

#: Looks in the time after which something counts as stuck.
LOOKS: Final = 4
#: Queues that are looked at between two turns of others.
STEP_QUEUES: Final = 64
#: Queues of which other nodes are asked in one look.
ASKED_MAX: Final = 4


class StuckWatch:
    """Looks at the fronts of all queues now and then."""

    def __init__(
        self,
        timeout_s: float,
        queues: HeldQueues,
        questions: NodeQuestions,
        *,
        takes: Callable[[str], bool],
        keeps_group: Callable[[str, str, str], Cause | None],
        notifications: NotificationSink,
        warn: Callable[[str, str, str], None],
    ) -> None:
        """``keeps_group``: the cause for a queue, a group and the node of its consumer, if that is known."""
        self._plan = StuckPlan(timeout_s)
        self._pause_s = timeout_s / LOOKS
        self._queues = queues
        self._questions = questions
        self._takes = takes
        self._keeps_group = keeps_group
        self._notifications = notifications
        self._warn = warn

    def stuck(self) -> list[StuckMessages]:
        """Return the messages that were stuck at the last look."""
        return self._plan.stuck()

    async def run(self) -> None:
        """Look, until cancelled.

        Checkpoint: always.
        Cancellation: nothing more is looked at.
        """
        while True:
            await trio.sleep(self._pause_s)
            names = self._queues.names()
            self._plan.retain(names)
            asked = 0
            for at in range(0, len(names), STEP_QUEUES):
                for name in names[at : at + STEP_QUEUES]:
                    asked += self._look(name, may_ask=asked < ASKED_MAX)
                await trio.lowlevel.checkpoint()

    def _look(self, name: str, *, may_ask: bool) -> bool:
        """Look at one queue; return whether other nodes were asked about it."""
        now = trio.current_time()
        found = [one for one in self._queues.held(name) if one.kind == "forwarding" or self._takes(one.address)]
        waiting = [(one.group, one.group_node) for one in found if one.group is not None]
        group = self._keeps_group(name, *waiting[0]) if waiting else None
        for stuck in self._plan.see(name, found, now, group):
            self._tell(stuck)
        if may_ask and self._plan.to_ask(found, now):
            self._ask(name, now)
            return True
        return False

    def _tell(self, stuck: StuckMessages) -> None:
        text = f"{stuck.messages} messages of {stuck.queue} have not moved for {stuck.seconds:.0f} s: {stuck.why}"
        self._warn("messages_stuck", text, f"{stuck.queue} {stuck.cause}")
        self._notifications.emit(
            MessagesStuck,
            address=stuck.address,
            queue=stuck.queue,
            cause=stuck.cause,
            why=stuck.why,
            messages=stuck.messages,
        )

    def _ask(self, name: str, now: float) -> None:
        """Ask the other nodes for consumers of a queue of which this node knows no consumer."""
        members = [one for one in self._questions.members() if one.state in ("linked", "behind")]
        self._plan.asking(name, now)
        answers = _Answers(len(members), lambda elsewhere: self._plan.answered(name, elsewhere, trio.current_time()))
        for member in members:
            reached = member.distance > 0
            self._questions.ask(
                member.node_id,
                "node_queue",
                {"name": name},
                answers.taking(member.node_id, reached=reached),
                answers.lacking,
            )


class _Answers:
    """The answers of several nodes about one queue."""

    def __init__(self, count: int, done: Callable[[Elsewhere], None]) -> None:
        self._left = count
        self._done = done
        self._beyond: list[str] = []
        self._unbound: list[str] = []

    def taking(self, node_id: bytes, *, reached: bool) -> Callable[[Mapping[str, Any]], None]:
        """Return a function for the answer of a node; ``reached``: messages may go there."""

        def take(values: Mapping[str, Any]) -> None:
            if values.get("reached", True) and values.get("exists") and values.get("consumers"):
                (self._unbound if reached else self._beyond).append(node_id.hex())
            self._count()

        return take

    def lacking(self, error: MeshqError) -> None:
        """Note that a node has not answered: nothing is known of its consumers."""
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._done(Elsewhere(beyond=tuple(self._beyond), unbound=tuple(self._unbound)))
