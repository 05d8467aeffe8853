"""Large bodies over a session: blocks in, until a SEND names the body; blocks out, of a consumer's unacked messages.

A body comes in on a channel of its own, block by block; each block is a call, answered when the block is written.  The
answer to the last block says that the body is whole, and durable if the message is.  Only then can a SEND name the
channel, so that placing the message is one step, as for every other message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from meshq import limits
from meshq.broker.access._access import permit_keeping
from meshq.broker.bodies._bodies import Bodies, MemoryBodies
from meshq.broker.bodies._body import Body
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.session._principal import Principal
from meshq.broker.session._session_calls import SessionCalls
from meshq.broker.session._session_channels import SessionChannels
from meshq.broker.session._session_consumers import SessionConsumers
from meshq.broker.work._closing import Closing
from meshq.errors import AddressFullError, MeshqError, NotActiveError, SecurityError, SettingsError
from meshq.wire import (
    BY_NAME,
    FLAG_DURABLE,
    FLAG_LAST,
    FLAG_RESENT,
    Frame,
    FrameType,
    Read,
    Send,
    decline,
    header_of,
    violation,
)


class _BodyUpload:
    """A body that is coming in."""

    __slots__ = ("body", "error", "last", "waiting", "whole")

    def __init__(self, body: Body) -> None:
        self.body = body
        # Why it can't be taken; whatever else comes of it gets the same answer.
        self.error: MeshqError | None = None
        # Blocks that were not answered yet.
        self.waiting = 0
        # The last block has come; and is written.
        self.last = False
        self.whole = False


class BodyBlocks:
    """The large bodies of one session."""

    def __init__(
        self,
        bodies: Bodies | MemoryBodies,
        memory: MemoryBound,
        principal: Principal,
        *,
        durable: bool,
        closing: Closing,
        calls: SessionCalls,
        channels: SessionChannels,
        consumers: SessionConsumers,
    ) -> None:
        self._bodies = bodies
        self._memory = memory
        self._durable = durable
        self._closing = closing
        self._principal = principal
        self._calls = calls
        self._channels = channels
        self._consumers = consumers
        self._uploads: dict[int, _BodyUpload] = {}
        # Blocks that were asked for and are being read.
        self._reads = 0
        self.handlers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.BLOCK: self._block,
            FrameType.READ: self._read,
        }

    # -- in

    def _block(self, frame: Frame) -> None:
        self._calls.begin(frame)
        upload = self._uploads.get(frame.channel)
        if upload is None:
            self._channels.open(frame)
            if len(self._uploads) >= limits.CHANNELS_MAX:
                # Each of those that are refused waits for its client to give it up.
                raise violation("too_many", f"{limits.CHANNELS_MAX} bodies that are neither whole nor given up")
            upload = self._uploads[frame.channel] = _BodyUpload(self._bodies.begin())
            if len(self._uploads) > limits.UPLOADS_MAX:
                upload.error = decline("too_many", f"a session sends at most {limits.UPLOADS_MAX} large bodies at once")
        size = len(frame.body)
        last = bool(frame.flags & FLAG_LAST)
        if upload.last or not 0 < size <= limits.LARGE_BLOCK_BYTES or not (last or size == limits.LARGE_BLOCK_BYTES):
            raise violation("too_large", f"a block of {size} bytes, or one after the last one")
        if upload.waiting >= limits.LARGE_WINDOW_BLOCKS:
            raise violation("no_credit", f"{limits.LARGE_WINDOW_BLOCKS} blocks of a body are not answered yet")
        upload.last = last
        self._check(upload, size)
        if upload.error is not None:
            self._calls.decline(frame.first, upload.error)
            return
        upload.waiting += 1
        upload.body.size_bytes += size
        self._memory.used_bytes += size
        written = partial(self._written, upload, frame.first, size)
        block = bytes(frame.body)
        durable = bool(frame.flags & FLAG_DURABLE) and self._durable
        take = self._bodies.finish if last else self._bodies.write
        take(upload.body, block, written, durable=durable)

    def _check(self, upload: _BodyUpload, size: int) -> None:
        """See whether a block may be taken."""
        memory, why = self._memory, self._closing.why
        if upload.error is not None:
            return
        if session_error := self._forbidden(upload):
            upload.error = session_error
        elif why is not None:
            upload.error = NotActiveError(why)
        elif upload.body.size_bytes + size > limits.LARGE_BYTES_MAX:
            upload.error = SettingsError(
                "body", None, f"at most {limits.LARGE_BYTES_MAX} bytes", shown="<a larger one>"
            )
        elif memory.used_bytes + size > memory.limit_bytes:
            upload.error = AddressFullError(
                f"there is no memory for another block of {size} bytes of a large body: {memory.used_bytes} bytes of "
                f"memory_limit={memory.limit_bytes} are in use"
            )

    def _forbidden(self, upload: _BodyUpload) -> MeshqError | None:
        """Why nothing of a body is taken from this session; asked with its first block."""
        if upload.body.size_bytes:
            return None
        try:
            permit_keeping(self._principal)
        except SecurityError as error:
            return error
        return None

    def _written(self, upload: _BodyUpload, call: int, size: int, error: MeshqError | None) -> None:
        upload.waiting -= 1
        if error is not None or not self._bodies.in_memory:
            self._memory.released(size)
        if error is not None:
            upload.error = upload.error or error
            self._calls.decline(call, error)
            return
        upload.whole = upload.last and not upload.waiting
        self._calls.answer(call, {})

    def claim(self, frame: Frame) -> Body:
        """The body that a SEND speaks of.

        Raises:
            UnblockedError: it came in another session, and its message was not stored there.
            RemoteProtocolError: it is not whole, or there is none.
        """
        channel = header_of(frame, Send).upload
        if not channel and frame.flags & FLAG_RESENT:
            error = decline("body_missing", "it was sent in a session that is gone, and is not stored")
            raise error from LookupError("this session has no upload of it")
        body = self.whole(frame)
        if body is None:
            raise violation("bad_channel", f"channel {channel} has no whole body for a run of one message without one")
        del self._uploads[channel]
        return body

    def claim_forwarded(self, frame: Frame, channel: int) -> Body:
        """The body of the message that another node forwards.

        Raises:
            RemoteProtocolError: it is not whole, or there is none.
        """
        body = self.whole_on(frame, channel)
        if body is None:
            raise violation("bad_channel", f"channel {channel} has no whole body for a run of one message without one")
        del self._uploads[channel]
        return body

    def whole(self, frame: Frame) -> Body | None:
        """The body that a SEND speaks of, if it is there and the SEND is as it must be.

        Raises:
            RemoteProtocolError: its header can't be read.
        """
        return self.whole_on(frame, header_of(frame, Send).upload)

    def whole_on(self, frame: Frame, channel: int) -> Body | None:
        """The whole body on a channel, if it is there and the frame has one message without a body."""
        upload = self._uploads.get(channel)
        # What the row says of its own body: that it ends where its properties do.
        bodiless = frame.count == 1 and bytes(frame.table[-8:-4]) == bytes(frame.table[-4:])
        return upload.body if upload is not None and upload.whole and bodiless else None

    def abandon(self, body: Body) -> None:
        """Delete a body that was claimed, and whose message was not placed."""
        self._bodies.abandon(body)

    def leave(self, channel: int) -> bool:
        """The client gives up a body; False if there is none on this channel."""
        upload = self._uploads.pop(channel, None)
        if upload is not None:
            self._bodies.abandon(upload.body)
        return upload is not None

    def end(self) -> None:
        """Drop all bodies that are not whole: the session ends."""
        for channel in list(self._uploads):
            self.leave(channel)

    # -- out

    def _read(self, frame: Frame) -> None:
        header = header_of(frame, Read)
        self._calls.begin(frame)
        consumer = self._consumers.find(frame)
        view = consumer.unacked_run(header.tag) if consumer is not None else None
        body = view.run.body if view is not None else None
        if view is not None and (body is None or header.block * limits.LARGE_BLOCK_BYTES >= body.size_bytes):
            raise violation("bad_tag", f"block {header.block} of delivery {header.tag}, which has none")
        if body is None:
            self._calls.decline(frame.first, decline("stale_delivery", BY_NAME["stale_delivery"].sentence))
            return
        if self._reads >= limits.READS_MAX:
            raise violation("no_credit", f"{limits.READS_MAX} blocks are being read already")
        self._reads += 1
        self._bodies.read(body, header.block, partial(self._got, frame.first))

    def _got(self, call: int, found: bytes | MeshqError) -> None:
        self._reads -= 1
        if isinstance(found, MeshqError):
            self._calls.decline(call, found)
        else:
            self._calls.answer_piece(call, found)
