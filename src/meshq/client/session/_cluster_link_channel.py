"""A node's link to another node, inside a session: runs out in the order of their numbers, bindings in.

When the session is made anew, nothing of the old one is kept here: its owner is asked how to open the link again, and
gives again, from the first that is not confirmed, what the other node may have stored already.  That node knows by the
link's numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from meshq.abc import BodyReader, ForwardEntry, ToldNode
from meshq.address import INTERNAL, ROUTINGS, SEPARATOR, is_name
from meshq.client.calls._calls import LinkCall, Values, opening
from meshq.client.calls._channels import Channels
from meshq.client.calls._deadlines import WaitDeadlines
from meshq.client.calls._frame_stream import FrameStream
from meshq.client.calls._pending_calls import PendingCalls
from meshq.client.calls._session_facts import SessionFacts
from meshq.client.session._address_credits import ToldCredits
from meshq.client.session._cluster_link_life import new_life
from meshq.client.session._link_upload import LinkUpload
from meshq.client.session._told_nodes_machine import ToldNodes
from meshq.concurrency import Wakeup
from meshq.errors import ClosedError, MeshqError, NotActiveError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import (
    COUNTER_MAX,
    FLAG_DURABLE,
    Binding,
    BranchChange,
    Forward,
    Frame,
    FrameType,
    LinkOpening,
    NodeNews,
    RunBytes,
    encode_former,
    encode_waits,
    header_of,
    violation,
)

#: The largest number that the journal can hold.
_QUEUE_MAX: Final = 2**32 - 1
#: Queues that one frame names: as many as a header surely has room for.
QUEUES_MAX: Final = 512


#: How a node on the way to a queue may be gone; empty: it is there.
_STATES: Final = ("", "left", "away")
_HEX: Final = frozenset("0123456789abcdef")


def _is_way(path: Sequence[str]) -> bool:
    """Whether these are the ids of nodes."""
    return all(len(one) == 2 * IDENTITY_BYTES and _HEX.issuperset(one) for one in path)


#: The default of ``entry``.
_MESSAGES: Final = ForwardEntry()


def _no_wait() -> int:
    """The default of ``waited``: 0."""
    return 0


def _no_former() -> Mapping[int, tuple[int, int, int]]:
    """The default of ``former``: nothing was counted."""
    return {}


class ForwardedRun(NamedTuple):
    """Messages for queues of the other node.

    ``number``: of the first one, on this link, which rises by ``step``; ``message``: its producer's number, which
    rises by ``step`` times ``stride``.
    """

    number: int
    step: int
    stride: int
    content: RunBytes
    address: str
    producer: bytes
    message: int
    stamp: int
    durable: bool
    queues: tuple[int, ...]
    #: These are of a multicast address.
    topic: bool = False
    #: When the first broker took them, ms, if that matters.
    arrival: int = 0
    #: How long that is ago, ms: asked when the run goes out, for it may wait for that.
    waited: Callable[[], int] = _no_wait
    #: The same run follows, with more queues.
    more: bool = False
    #: Address, queue and reason of messages that were moved before; empty: there is no origin.
    origin: tuple[str, ...] = ()
    #: By row: how often a message was delivered before, how often it came back for sure, and for how many ms it still
    #: waits; asked as ``waited``.
    former: Callable[[], Mapping[int, tuple[int, int, int]]] = _no_former
    #: The queue that the messages are for, by name, if that may have to be made.
    queue: tuple[str, ...] = ()
    #: What it is if it is no message, and the prepared transaction that holds it.
    entry: ForwardEntry = _MESSAGES
    #: The body of the one message, if that goes in blocks before it, and the channel where the other node has it.
    large: BodyReader | None = None
    upload: int = 0

    @property
    def last(self) -> int:
        """The link's number of the last message."""
        return self.number + (self.content.rows - 1) * self.step

    def frame(self, channel: int) -> Frame:
        """Make the frame of the run."""
        former = self.former()
        header = Forward(
            address=self.address,
            producer=self.producer,
            number=self.message,
            step=self.step,
            stride=self.stride,
            queues=self.queues,
            more=self.more,
            topic=self.topic,
            arrival=self.arrival,
            waited=self.waited(),
            origin=self.origin,
            counts=encode_former({row: one[:2] for row, one in former.items() if one[0]}),
            due=encode_waits({row: one[2] for row, one in former.items() if one[2]}),
            queue=self.queue,
            entry=self.entry.kind,
            held=self.entry.held,
            target=self.entry.target,
            upload=0 if self.more else self.upload,
            branch=self.entry.way.branch,
            credit=self.entry.way.credit,
        )
        return Frame(
            FrameType.FORWARD,
            flags=FLAG_DURABLE if self.durable else 0,
            channel=channel,
            first=self.number,
            stamp=self.stamp,
            header=header.encode(),
            count=self.content.rows,
            table=self.content.table,
            body=self.content.body,
        )


class PeerEvents(Protocol):
    """The owner of a link, which receives the frames of the other node."""

    def opening(self, node_id: bytes) -> LinkOpening:
        """Open the link in a session with this node; a snapshot follows."""

    def described(self, binding: Binding) -> None:
        """A queue of the other node, as it is now."""

    def opened(self, number: int, store: bytes, features: Sequence[str]) -> None:
        """The other node takes the link: it has stored everything up to this number, and takes nothing more from an
        earlier session.  ``store``: what it calls its store; empty: it is older, and doesn't say.  ``features``: the
        parts of runs that it understands besides those that every node does."""

    def snapshot(self) -> None:
        """Note the end of the snapshot: all queues of the other node are described."""

    def told(self, nodes: Sequence[ToldNode]) -> None:
        """Note all nodes that the other node knows now."""

    def stored(self, number: int) -> None:
        """Note that the other node has stored everything up to ``number``."""

    def refused(self, error: MeshqError) -> None:
        """Note that the other node refuses the link."""

    def unreadable(self, number: int, error: MeshqError) -> None:
        """Note that the body of the message with this last number can't be read: the message is given up."""

    def announcement(self) -> NodeNews | None:
        """Return how this node describes itself now; None: the other node takes no announcements."""

    def late(self, error: MeshqError) -> None:
        """Note that a call over the link was not answered in time: its session is to be given up."""

    def parted(self, how: str, error: MeshqError) -> None:
        """Note that the other node has "left" or is "away"; called again after each failed attempt to connect."""


class SendCredit(Protocol):
    """The credit of a session, which all that it sends shares."""

    #: Bytes of frames with messages that were sent in this session.
    sent_bytes: int

    @property
    def open(self) -> bool:
        """Whether a run may go out now."""


class ClusterLinkChannel:
    """The channel of a link between nodes, which outlives sessions."""

    __slots__ = (
        *("_calls", "_channels", "_credit", "_deadlines", "_events", "_facts", "_life", "_call"),
        *(
            "_sizes",
            "_stream",
            "_told",
            "_upload",
            "_window",
            "channel",
            "credits",
            "opening",
            "sent",
            "under_way_bytes",
            "unsent",
        ),
    )

    def __init__(
        self,
        stream: FrameStream,
        calls: PendingCalls,
        channels: Channels,
        facts: SessionFacts,
        *,
        deadlines: WaitDeadlines,
        credit: SendCredit,
        events: PeerEvents,
    ) -> None:
        self._stream = stream
        self._calls = calls
        self._deadlines = deadlines
        self._channels = channels
        self._facts = facts
        self._credit = credit
        self._events = events
        self.channel: int = 0
        self._life: Final = new_life()
        self._told = ToldNodes()
        #: The credits of addresses at the other node.
        self.credits: ToldCredits = ToldCredits()
        # The call that opens the channel in this session; None: no session has asked.
        self._call: LinkCall | None = None
        # The body that goes over the link, before the first unsent run that names it.
        self._upload: LinkUpload | None = None
        #: Wakes a task when the link has opened in another session.
        self.opening: Wakeup = Wakeup()
        #: Runs that wait for credit or for a link, and runs that were sent and not confirmed; in order.
        self.unsent: deque[ForwardedRun] = deque()
        self.sent: deque[ForwardedRun] = deque()
        # The sizes of their frames, and of all of these together; and what that is before the next one goes out, at
        # most.
        self._sizes: deque[int] = deque()
        self.under_way_bytes: int = 0
        self._window: float = math.inf

    def limit(self, window: float) -> None:
        """Let a run go out only while less than ``window`` bytes are not known to be stored."""
        self._window = window

    @property
    def unconfirmed(self) -> int:
        """Messages given and not known to be stored."""
        return sum(run.content.rows for line in (self.unsent, self.sent) for run in line if not run.more)

    @property
    def _divided(self) -> bool:
        """Whether a part of a run went out and more of its queues follow: without those it is never confirmed."""
        return bool(self.sent) and self.sent[-1].more

    def submit(self, run: ForwardedRun) -> None:
        """Send a run, now or after the runs before it."""
        queues = run.queues
        for at in range(0, max(1, len(queues)), QUEUES_MAX):
            part = queues[at : at + QUEUES_MAX]
            entry = run.entry if not at else run.entry.without_changes()
            self.unsent.append(run._replace(queues=part, more=at + QUEUES_MAX < len(queues), entry=entry))
        self.pump()

    def pump(self) -> None:
        """Send the waiting runs as far as the session's credit and the link's window allow."""
        if self._life.state != "open":
            return
        credit, stream = self._credit, self._stream
        while self.unsent and credit.open and (self.under_way_bytes < self._window or self._divided):
            run = self.unsent[0]
            if run.entry.way.changes:
                run = self.unsent[0] = self._change(run)
            if run.large is not None:
                upload = self._begun(run, run.large)
                if not upload.whole:
                    upload.advance()
                    return
                run = run._replace(upload=upload.channel)
                if not run.more:
                    self._upload = None
            self.unsent.popleft()
            frame = run.frame(self.channel)
            credit.sent_bytes += frame.size_bytes
            size = frame.size_bytes + (run.large.size_bytes if run.large is not None and not run.more else 0)
            self.sent.append(run)
            self._sizes.append(size)
            self.under_way_bytes += size
            stream.out(frame)

    def _change(self, run: ForwardedRun) -> ForwardedRun:
        """Tell the other node which branches begin and end before a run; return the run without that."""
        for address, ended in run.entry.way.changes:
            header = BranchChange(address=address, ended=ended).encode()
            self._stream.out(Frame(FrameType.BRANCH, channel=self.channel, header=header))
        return run._replace(entry=run.entry.without_changes())

    def _begun(self, run: ForwardedRun, body: BodyReader) -> LinkUpload:
        """Return the upload of the body of the next run."""
        if self._upload is None:
            self._upload = LinkUpload(
                body,
                self._calls,
                self._channels,
                self._deadlines,
                durable=run.durable,
                pump=self._pump_later,
                unreadable=partial(self._unreadable, run.last),
                late=self._events.late,
            )
        return self._upload

    def _pump_later(self) -> None:
        """Go on at the end of the turn: a body in memory is read within the call that asks for it."""
        self._stream.wake()

    def _unreadable(self, number: int, error: MeshqError) -> None:
        self._upload = None
        self.unsent = deque(run for run in self.unsent if run.last != number)
        self._events.unreadable(number, error)
        self._pump_later()

    # -- in

    def confirm(self, frame: Frame) -> None:
        """Settle the runs that were sent up to the one with a last number, which the node has stored.

        Raises:
            RemoteProtocolError: no such run was sent, or it is confirmed already.
        """
        ends = (index for index, run in enumerate(self.sent, 1) if run.last == frame.first and not run.more)
        settled = next(ends, 0)
        if not settled:
            raise violation("bad_number", f"number {frame.first} of the link is confirmed, which was not sent")
        for _ in range(settled):
            self.sent.popleft()
            self.under_way_bytes -= self._sizes.popleft()
        self._events.stored(frame.first)
        self.pump()

    def binding(self, frame: Frame) -> None:
        """A queue of the other node.

        Raises:
            RemoteProtocolError: no queue can be so.
        """
        binding = header_of(frame, Binding)
        # The queue of a subscription has its address in its name.
        names = (binding.name.removeprefix(binding.address + SEPARATOR), binding.address)
        named = binding.routing in ROUTINGS and all(is_name(name) and not name.startswith(INTERNAL) for name in names)
        if not 0 < binding.queue <= _QUEUE_MAX or not (named or binding.gone):
            raise violation("bad_header", f"queue {binding.queue} has no valid number, name, address or routing type")
        named = not binding.node_name or is_name(binding.node_name)
        if not (_is_way(binding.path) and binding.state in _STATES and named):
            raise violation("bad_header", f"queue {binding.queue} has no valid way to its node, or no valid state")
        self._events.described(binding)

    def snapshot(self, frame: Frame) -> None:
        """Take the end of the snapshot."""
        self._events.snapshot()

    def node(self, frame: Frame) -> None:
        """Take a description of a node of the cluster from the other node.

        Raises:
            RemoteProtocolError: nobody can say that.
        """
        if self._told.take(frame):
            self._events.told(self._told.nodes)

    # -- life

    def forget(self) -> None:
        """Drop the state of the session."""
        self._life.on("forget")
        self._settled()
        if self._upload is not None:
            self._upload.end()
            self._upload = None
        self.credits.forget()
        self.sent.clear()
        self.unsent.clear()
        self._sizes.clear()
        self.under_way_bytes = 0

    def renew(self) -> None:
        """Handle a new session: open the link again."""
        self.forget()
        self._told.renew()
        self._life.on("ask")
        self.channel = self._channels.new(self)
        header = self._events.opening(self._facts.node_id).encode()
        make = opening(FrameType.LINK, self.channel, header)
        self._call = call = LinkCall("the opening of a link", make, self._opened, self._events.late)
        self._deadlines.timed[call] = None
        self._calls.add(call)
        self._deadlines.look_at_timeout(call.since)

    def _settled(self) -> None:
        """Wait for the answer to the opening no longer."""
        if self._call is not None:
            self._deadlines.timed.pop(self._call, None)
            self._call = None

    def announce(self, about: NodeNews) -> bool:
        """Say once more who this node is; returns whether it was sent: only over a connection, on an open channel."""
        if self._life.state != "open" or self._stream.link is None:
            return False
        self._stream.out(Frame(FrameType.NODE, channel=self.channel, first=1, header=about.encode()))
        return True

    def _opened(self, values: Values, error: MeshqError | None) -> None:
        self._settled()
        if isinstance(error, (NotActiveError, ClosedError)):
            # The node is going away, or this one: the next session asks again.
            return
        if error is not None:
            self._life.on("refuse")
            self._events.refused(error)
            return
        number = values.get("number")
        if type(number) is not int or not 0 <= number <= COUNTER_MAX:
            raise violation("bad_header", "the link is opened without the number up to which everything is stored")
        store = values.get("store", b"")
        if type(store) is not bytes or len(store) not in (0, IDENTITY_BYTES):
            raise violation("bad_header", f"the link is opened by a store whose name is not {IDENTITY_BYTES} bytes")
        features = values.get("features", "")
        if type(features) is not str:
            raise violation("bad_header", "the link is opened with features that are no text")
        self._life.on("open")
        self._events.opened(number, store, features.split())
        self.opening.wake()
        self.pump()
