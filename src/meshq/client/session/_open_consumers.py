"""The open consumers of a session: opened in each session anew, until they are closed."""

from __future__ import annotations

from typing import Any

from meshq.client.calls._calls import Call, InnerCall, Values, opening
from meshq.client.calls._channels import Channels
from meshq.client.calls._frame_stream import FrameStream
from meshq.client.calls._link_failures import LinkFailures
from meshq.client.calls._pending_calls import PendingCalls
from meshq.client.calls._session_facts import SessionFacts
from meshq.client.incoming._inbox import Inbox
from meshq.errors import MeshqError, NotActiveError
from meshq.wire import ConsumerLost, Frame, FrameType, error_of, header_of


class OpenConsumers:
    """The inboxes of one session, in the order in which they were opened."""

    __slots__ = ("_calls", "_channels", "_facts", "_find", "_inboxes", "_link_failures", "_stream")

    def __init__(
        self,
        stream: FrameStream,
        calls: PendingCalls,
        channels: Channels,
        facts: SessionFacts,
        link_failures: LinkFailures,
    ) -> None:
        self._stream = stream
        self._calls = calls
        self._channels = channels
        self._find = channels.find
        self._facts = facts
        self._link_failures = link_failures
        self._inboxes: dict[Inbox[Any], None] = {}

    def __len__(self) -> int:
        return len(self._inboxes)

    def open(self, inbox: Inbox[Any]) -> None:
        """Open a consumer."""
        self._inboxes[inbox] = None
        if self._stream.link is not None:
            self._consume(inbox)

    def close(self, inbox: Inbox[Any]) -> Call | None:
        """Close a consumer; return the call to wait for, or None."""
        state = inbox.life.state
        call = self._channels.leave(inbox.channel, inbox.reached) if state == "open" else None
        if state not in ("opening", "closing"):
            # Else the answer to its opening comes back here.
            self._inboxes.pop(inbox, None)
        inbox.close()
        return call

    def _consume(self, inbox: Inbox[Any]) -> None:
        channel = self._channels.new(inbox)
        inbox.begin(channel, self._facts.epoch)

        def consumed(values: Values, error: MeshqError | None) -> None:
            state = inbox.life.state
            if state not in ("opening", "closing"):
                # Lost before the answer.
                return
            if isinstance(error, NotActiveError) and state == "opening":
                # The node is going away: the next session asks again.
                self._channels.lost(channel)
                inbox.begin(0, self._facts.epoch)
            elif error is not None:
                self._inboxes.pop(inbox, None)
                inbox.fail(error)
            else:
                inbox.opened()
                if state == "closing":
                    self._inboxes.pop(inbox, None)
                    self._channels.leave(channel, inbox.reached)

        self._calls.add(InnerCall(opening(FrameType.CONSUME, channel, inbox.request.header), consumed))

    def deliver(self, frame: Frame) -> None:
        """Take a DELIVER frame.

        Raises:
            RemoteProtocolError: there is no such consumer, or the frame is none for it.
        """
        inbox: Inbox[Any] = self._find(frame, Inbox)
        inbox.deliver(frame)

    def lost(self, frame: Frame) -> None:
        """Take a CONSUMER_LOST frame: the consumer is gone, or its browse has brought everything.

        Raises:
            RemoteProtocolError: there is no such consumer, or the consumer was lost before.
        """
        inbox: Inbox[Any] = self._find(frame, Inbox)
        header = header_of(frame, ConsumerLost)
        self._inboxes.pop(inbox, None)
        self._stream.settling.pop(inbox, None)
        self._channels.lost(frame.channel)
        if not header.code and inbox.browse:
            inbox.end_browse()
            return
        inbox.fail(error_of(header.code, header.text))

    # -- life

    def resume(self) -> None:
        """Handle a resumed session: open the consumers that a stopping node has not opened."""
        for inbox in list(self._inboxes):
            if not inbox.channel:
                self._consume(inbox)

    def renew(self) -> None:
        """Handle a new session: open every consumer again whose messages it may show again."""
        for inbox in list(self._inboxes):
            state = inbox.life.state
            if state == "closing":
                del self._inboxes[inbox]
            elif inbox.request.temporary:
                del self._inboxes[inbox]
                inbox.fail(self._link_failures.cut_off("its temporary queue is gone with its session"))
            elif inbox.browse and state == "open":
                # From its beginning it would show again what was seen.
                del self._inboxes[inbox]
                # What it has gathered is about a channel of the session that is gone.
                self._stream.settling.pop(inbox, None)
                inbox.fail(self._link_failures.cut_off("the browse is gone with its session: begin another one"))
            else:
                self._consume(inbox)

    def fail(self, error: MeshqError) -> None:
        """Fail all consumers."""
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes:
            inbox.fail(error)
