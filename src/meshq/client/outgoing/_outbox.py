"""The outbox of one producer: runs that wait, runs that were sent, and their numbers.

A run gets its number when it is sent for the first time, never before, so that one that is given up unsent leaves
no trace.  It is kept until it is confirmed or refused, beside what the session keeps for a resume: when the session
is made anew, only these numbers and the high watermark at the node tell what has to be sent again.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Final, Protocol

from meshq.client.calls._link_failures import LinkFailures, outcome_of
from meshq.client.outgoing._outbox_life import READY, new_life
from meshq.client.outgoing._run_life import RUN_TRANSITIONS, UNSENT
from meshq.concurrency import Completion
from meshq.errors import CallTimeoutError, MeshqError, caused
from meshq.lifecycle import LifeCycle
from meshq.wire import RunBytes, duplicate_ids, pick

_CUT_OFF: Final = "a send was cut off by the loss of its session"


class OutboxOwner(Protocol):
    """The owner of the runs in an outbox, which is told their outcomes."""

    def run_settled(self, run: OutgoingRun, error: MeshqError | None) -> None:
        """Take the outcome of a run: confirmed, or failed with ``error``."""

    def run_sent(self) -> None:
        """Note that a run has left the send queue."""


class OutgoingRun(Completion):
    """A run that is queued or sent; a task may wait for its confirm.

    A run without messages is a barrier: it marks a place in the send queue, for tasks that wait until it is reached.
    """

    waits_for_disk: ClassVar[bool] = True

    __slots__ = (
        "content",
        "count",
        "durable",
        "first",
        "owner",
        "plain",
        "stamp",
        "start",
        "state",
        "upload",
    )

    def __init__(
        self, content: RunBytes, durable: bool, stamp: int, owner: OutboxOwner | None = None, *, plain: bool = False
    ) -> None:
        super().__init__()
        self.owner: OutboxOwner | None = owner
        self.content: RunBytes = content
        self.count: int = content.rows
        #: Its messages are bodies and nothing else.
        self.plain: bool = plain
        self.durable: bool = durable
        #: The producer's clock, ms.
        self.stamp: int = stamp
        #: Number of the first message; 0 until it is sent.
        self.first: int = 0
        #: Place of the first message among all that its owner has taken.
        self.start: int = 0
        #: A state of ``RUN_TRANSITIONS``.
        self.state: str = "held"
        #: Where the body of its one message was sent, if that was sent apart: the channel and the session's epoch.
        self.upload: tuple[int, int] | None = None

    @property
    def last(self) -> int:
        """Number of the last message."""
        return self.first + self.count - 1

    @property
    def unsent(self) -> bool:
        """Whether the run was never sent, in this session or an earlier one."""
        return self.state in UNSENT

    @property
    def queued(self) -> bool:
        """Whether the run waits in the send queue, for credit or for the confirmation window."""
        return self.state in ("queued", "queued again")

    @property
    def given_up(self) -> bool:
        """Whether the waiting task has given up the run, which was never sent."""
        return self.state == "given up"

    def on(self, event: str) -> None:
        """Change the state by an event of ``RUN_TRANSITIONS``."""
        self.state = RUN_TRANSITIONS[self.state][event]

    def expired(self, why: BaseException) -> None:
        """Fail the run with a timeout."""
        if not self.count:
            error = CallTimeoutError("flush was not answered in time")
        elif not self.unsent:
            error = CallTimeoutError("a send was not confirmed in time")
        else:
            queued = self.queued
            self.on("give up")
            if not queued:
                text = "a send found no connection in time"
            elif isinstance(why, MeshqError):
                # The error that has ended the link, or the last attempt to connect.
                text = "a send found no connection in time: the connection was lost"
            else:
                text = "a send found no room on the broker's disk in time"
            error = CallTimeoutError(text, outcome="not_done")
        caused(error, why)
        if self.owner is not None:
            self.owner.run_settled(self, error)
        self.fail(error)


class ProducerEvents(Protocol):
    """The owner of an outbox: hears of the opening and of the failure of its producer."""

    def producer_opened(self) -> None:
        """Note that the broker has opened the producer's channel; called in each session."""

    def producer_failed(self, error: MeshqError) -> None:
        """Note that the broker does not take the producer, or that the session has failed."""


class Outbox:
    """The runs of one producer id at one address."""

    __slots__ = (
        "address",
        "awaiting_channel",
        "awaiting_credit",
        "channel",
        "credit_told",
        "credit_until",
        "events",
        "failed",
        "life",
        "next",
        "node_id",
        "producer",
        "queued",
        "remembered",
        "routing",
        "sent",
        "sent_on_channel",
        "unsettled",
        "window",
    )

    def __init__(self, address: str, producer: bytes, events: ProducerEvents, *, window: int = 0) -> None:
        self.address: str = address
        self.producer: bytes = producer
        #: The window of unconfirmed messages that a bridge has set; 0: none.
        self.window: int = window
        #: The routing type that the address is to have; empty: whichever.
        self.routing: str = ""
        #: The owner, which is told what becomes of the producer.
        self.events: ProducerEvents = events
        #: The session's channel; 0 between sessions.
        self.channel: int = 0
        #: Duplicate ids that the broker remembers at the address; None: it has not said.
        self.remembered: int | None = None
        #: Where the producer is between its opening and its end.
        self.life: LifeCycle = new_life()
        self.failed: MeshqError | None = None
        #: Messages that were sent on this channel, in all.
        self.sent_on_channel: int = 0
        #: So many of these the broker takes for the time being: 0 while the channel is not open.
        self.credit_until: int = 0
        #: What the broker has said of that in this session, which may be before the channel is open.
        self.credit_told: int | None = None
        #: Runs that wait until it takes more.
        self.awaiting_credit: deque[OutgoingRun] = deque()
        #: Runs that wait until it is ready.
        self.awaiting_channel: deque[OutgoingRun] = deque()
        #: Runs sent in this session and not settled, in the order of their numbers.
        self.sent: deque[OutgoingRun] = deque()
        #: Number of the next message.
        self.next: int = 1
        #: Messages of runs that were not sent yet, held here or in the session's line.
        self.queued: int = 0
        #: Messages of all runs given and not settled.
        self.unsettled: int = 0
        #: The node to which the runs in ``sent`` went.
        self.node_id: bytes = b""

    def __repr__(self) -> str:
        return f"<Outbox {self.address!r} channel={self.channel} next={self.next} unsettled={self.unsettled}>"

    def settle(self, run: OutgoingRun, error: MeshqError | None = None) -> None:
        """Settle a run that is in no queue any more: confirmed, or failed with ``error``."""
        self.unsettled -= run.count
        if run.owner is not None:
            run.owner.run_settled(run, error)
        elif error is None:
            run.succeed()
        else:
            run.fail(error)

    def confirmed(self, number: int) -> None:
        """Settle the runs up to ``number``, which the broker has stored."""
        sent = self.sent
        while sent and sent[0].first + sent[0].count - 1 <= number and sent[0].state != "refused":
            self.settle(sent.popleft())

    def take_stored(self, run: OutgoingRun) -> bool:
        """Take one run out of those sent; False if it is not there: it was given up, or goes out again."""
        sent = self.sent
        if sent and sent[0] is run:
            sent.popleft()
        elif run in sent:
            # What was sent before it was refused, and that is still to be heard of.
            sent.remove(run)
        else:
            return False
        return True

    def take_refused(self, first: int, messages: int) -> OutgoingRun | None:
        """Take the refused run out of the sent runs; None if it is not there."""
        for run in self.sent:
            if run.first == first and run.count == messages:
                self.sent.remove(run)
                return run
        return None

    def keep(self, run: OutgoingRun) -> None:
        """Put a run back among the sent runs, in the order of their numbers."""
        sent = self.sent
        at = len(sent)
        while at and sent[at - 1].first > run.first:
            at -= 1
        sent.insert(at, run)

    def ask(self, channel: int) -> None:
        """Begin in a new session, which asks the broker to open the channel."""
        self.life.on("ask")
        self.channel = channel

    def opened(self, credit_until: int) -> None:
        """Note that the broker has opened the channel, and takes so many messages."""
        self.life.on("open")
        self.credit_until = credit_until if self.credit_told is None else self.credit_told

    def set_credit(self, credit_until: int) -> None:
        """Set the total number of messages that the broker takes of the producer on this channel."""
        self.credit_told = credit_until
        if self.life.state in READY:
            self.credit_until = credit_until

    def left(self) -> None:
        """Note that all runs are settled and the channel is given back."""
        self.life.on("leave")
        self.credit_until = 0

    def renew(self) -> None:
        """Handle a lost session: unsent runs go to ``awaiting_channel`` until there is a channel again."""
        self.life.on("defer")
        self.channel = 0
        self.sent_on_channel, self.credit_until, self.credit_told = 0, 0, None
        awaiting_credit, self.awaiting_credit = self.awaiting_credit, deque()
        for run in awaiting_credit:
            self.hold(run)

    def hold(self, run: OutgoingRun) -> None:
        """Take back a queued run of a lost session: an unsent run waits for the channel, a sent one is a sent run."""
        run.on("hold")
        if run.unsent:
            self.awaiting_channel.append(run)
        else:
            # The node's answer to the next opening of the channel judges the run, as all that was sent.
            self.queued -= run.count
            self.keep(run)

    def wait_for_credit(self, run: OutgoingRun) -> bool:
        """Have a run wait until the broker takes more of this producer; False if it may go."""
        if run.first:
            # It has a number from an earlier try: before those that have none.
            at = sum(1 for one in self.awaiting_credit if one.first and one.first < run.first)
            if not at and self.sent_on_channel < self.credit_until:
                return False
            self.awaiting_credit.insert(at, run)
            return True
        if not self.awaiting_credit and not run.count:
            # Only a mark, with nothing before it that waits.
            return False
        self.awaiting_credit.append(run)
        return True

    def reopened(self, number: int, link_failures: LinkFailures, *, same_node: bool, resend: bool) -> list[OutgoingRun]:
        """Handle the channel of a new session, at a node that has stored everything up to ``number``.

        Returns the runs to send again; runs that cannot be sent again fail.
        """
        again: list[OutgoingRun] = []
        pending, self.sent = self.sent, deque()
        for run in pending:
            if same_node and run.last <= number:
                self.settle(run)
            elif not resend:
                self.settle(run, link_failures.cut_off(f"{_CUT_OFF}: resend is off"))
            elif same_node:
                again.append(run)
            else:
                again += self._split(run, link_failures)
        return again

    def _split(self, run: OutgoingRun, link_failures: LinkFailures) -> list[OutgoingRun]:
        """Split a run for another node: messages with duplicate ids become runs to send again, all others fail."""
        ids = duplicate_ids(run.content)
        if all(ids):
            return [run]
        why = "it has no duplicate id, and this node does not know what was stored of its producer"
        error = link_failures.cut_off(f"{_CUT_OFF}: {why}")
        parts: list[OutgoingRun] = []
        index = 0
        while index < run.count:
            end = index
            while end < run.count and bool(ids[end]) == bool(ids[index]):
                end += 1
            if index == 0 and end == run.count:
                part = run
            else:
                part = OutgoingRun(pick(run.content, range(index, end)), run.durable, run.stamp, run.owner)
                part.first, part.start, part.state = run.first + index, run.start + index, run.state
            if ids[index]:
                parts.append(part)
            else:
                self.settle(part, error)
            index = end
        return parts

    def fail(self, error: MeshqError) -> None:
        """Fail the producer and all runs: nothing is sent or confirmed any more."""
        self.life.on("fail")
        self.credit_until = 0
        runs = [*self.sent, *self.awaiting_credit, *self.awaiting_channel]
        self.sent.clear()
        self.awaiting_credit.clear()
        self.awaiting_channel.clear()
        self.queued = 0
        for run in runs:
            self.settle(run, outcome_of(error, "not_done" if run.unsent else "unknown"))
        self.events.producer_failed(error)
