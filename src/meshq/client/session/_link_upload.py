"""A large body that goes over a link between nodes: block by block, before the message that names it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from meshq.abc import BodyReader
from meshq.client.calls._calls import LinkCall, Values
from meshq.client.calls._channels import Channels
from meshq.client.calls._deadlines import WaitDeadlines
from meshq.client.calls._pending_calls import PendingCalls
from meshq.client.session._link_upload_machine import LinkUploadMachine
from meshq.errors import ClosedError, MeshqError, NotActiveError
from meshq.wire import FLAG_DURABLE, FLAG_LAST, Frame, FrameType


class LinkUpload:
    """The upload of one body in one session.

    ``pump``: called when there is something to do.  ``unreadable``: called when a block can't be read here, ``late``
    when the other node does not take one: the session is to be given up.
    """

    def __init__(
        self,
        body: BodyReader,
        calls: PendingCalls,
        channels: Channels,
        deadlines: WaitDeadlines,
        *,
        durable: bool,
        pump: Callable[[], None],
        unreadable: Callable[[MeshqError], None],
        late: Callable[[MeshqError], None],
    ) -> None:
        self._body = body
        self._calls = calls
        self._channels = channels
        self._deadlines = deadlines
        self._flags = FLAG_DURABLE if durable else 0
        self._pump = pump
        self._unreadable = unreadable
        self._late = late
        self._machine = LinkUploadMachine(body.size_bytes)
        self._waiting: dict[LinkCall, None] = {}
        #: The channel of the body; 0: nothing was sent.
        self.channel: int = 0
        self._ended = False

    @property
    def whole(self) -> bool:
        """Whether the other node has all of the body."""
        return self._machine.whole

    def advance(self) -> None:
        """Ask for the blocks that may be read now."""
        while not self._ended and (number := self._machine.next()) is not None:
            self._body.read(number, self._got)

    def _got(self, found: bytes | MeshqError) -> None:
        if self._ended:
            return
        if isinstance(found, MeshqError):
            self.leave()
            self._unreadable(found)
            return
        if not self.channel:
            self.channel = self._channels.new(None)
        flags = self._flags | (FLAG_LAST if self._machine.read() else 0)
        make = partial(_block, self.channel, flags, found)

        def answered(values: Values, error: MeshqError | None) -> None:
            self._answered(call, error)

        call = LinkCall("a block of a body", make, answered, self._late)
        self._waiting[call] = self._deadlines.timed[call] = None
        self._calls.add(call)
        self._deadlines.look_at_timeout(call.since)
        self._pump()

    def _answered(self, call: LinkCall, error: MeshqError | None) -> None:
        del self._waiting[call]
        self._deadlines.timed.pop(call, None)
        if self._ended or isinstance(error, (NotActiveError, ClosedError)):
            # The node is going away, or this one: the next session begins anew.
            return
        if error is not None:
            self.end()
            self._late(error)
            return
        self._machine.written()
        self._pump()

    def leave(self) -> None:
        """Give the body up: the other node drops the blocks that have come."""
        self.end()
        if self.channel:
            self._channels.leave(self.channel, 0)

    def end(self) -> None:
        """Send nothing more, and wait for nothing."""
        self._ended = True
        for call in list(self._waiting):
            self._deadlines.timed.pop(call, None)


def _block(channel: int, flags: int, block: bytes, number: int) -> Frame:
    return Frame(FrameType.BLOCK, flags=flags, channel=channel, first=number, body=block)
