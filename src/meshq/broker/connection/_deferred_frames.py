"""The deferred frames of a connection: the first waits for costly filters or disk space, and the others follow."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final

from meshq import limits
from meshq.broker.session._disk_space import DiskSpace
from meshq.broker.session._session import ServerSession
from meshq.broker.work._fair_scheduler import FairScheduler, ScheduledWork
from meshq.wire import Frame, FrameType

#: What is sent against credit.
_CREDITED: Final = frozenset({FrameType.SEND, FrameType.FORWARD})


class DeferredFrames:
    """The deferred frames of one connection.

    ``handle`` is given the deferred frames once the first of them need not wait any more; ``taken_in`` is called next.
    """

    __slots__ = (
        "_answered", "_asking", "_disk_space", "_fair_scheduler", "_handle", "_held_bytes", "_held_granted_bytes",
        "_taken_in", "frames", "large_bytes", "queued", "sieves",
    )  # fmt: skip

    def __init__(
        self,
        disk_space: DiskSpace,
        queued: Sized,
        sieves: Sized,
        fair_scheduler: FairScheduler,
        *,
        handle: Callable[[list[Frame]], None],
        taken_in: Callable[[], None],
    ) -> None:
        self._disk_space = disk_space
        self._fair_scheduler = fair_scheduler
        self._handle = handle
        self._taken_in = taken_in
        #: Larger frames may have to wait for disk space; and all frames while some wait for it.
        self.large_bytes: float = disk_space.large_bytes
        self.queued: Sized = queued
        #: Whatever sorts messages: while there is something, runs may have to be put to filters before.
        self.sieves: Sized = sieves
        #: The deferred frames, in order.
        self.frames: list[Frame] = []
        # Their bytes: of those that were granted, and of the others.
        self._held_granted_bytes = self._held_bytes = 0
        # The filters that the first frame waits for; and a frame whose wait for disk space is over.
        self._asking: ScheduledWork | None = None
        self._answered: Frame | None = None

    @property
    def crowded(self) -> bool:
        """Whether so much waits that no more should be read."""
        return self._held_bytes > limits.HELD_BYTES_MAX

    def must_wait(self, frame: Frame, session: ServerSession | None) -> bool:
        """Whether a frame, and all later ones, must wait for costly filters or for disk space.

        Raises:
            RemoteProtocolError: the frame can't be read.
        """
        costly = None
        if session is None:
            return False
        if self.sieves and frame.type is FrameType.SEND:
            costly = session.producers.costly(frame)
        elif self.sieves and frame.type is FrameType.FORWARD and session.peering is not None:
            costly = session.peering.costly(frame)
        if costly is not None:
            self._asking = self._fair_scheduler.begin(session.principal.owner, self, costly, self._judged)
            return True
        if frame is self._answered or (frame.size_bytes <= self.large_bytes and not self.queued):
            return False
        if frame.type is FrameType.FORWARD and session.peering is not None:
            session.peering.see(frame)
        return self._disk_space.must_wait(frame, self._resume)

    def defer(self, frames: list[Frame], session: ServerSession | None) -> None:
        """Defer frames behind the frames that wait.

        Raises:
            RemoteProtocolError: the client has sent more than its credit.
        """
        for frame in frames:
            if frame.type not in _CREDITED:
                self._held_bytes += frame.size_bytes + limits.HELD_FRAME_BYTES
            elif session is not None:
                session.credit.check(self._held_granted_bytes)
                self._held_granted_bytes += frame.size_bytes
            self.frames.append(frame)

    def drop(self) -> list[Frame]:
        """Return the deferred frames, which are not handled: the connection loses its session."""
        if self._asking is not None:
            self._fair_scheduler.cancel(self._asking)
            self._asking = None
        return self._release()

    def _release(self) -> list[Frame]:
        deferred, self.frames = self.frames, []
        self._held_granted_bytes = self._held_bytes = 0
        return deferred

    def _judged(self) -> None:
        """Wait for disk space for the first deferred frame, after its filters were asked."""
        self._asking = None
        self._handle(self._release())
        self._taken_in()

    def _resume(self) -> None:
        """Handle the deferred frames: there is disk space for the first one, or none at all."""
        deferred = self._release()
        if deferred:
            # The connection is there still.
            self._answered = deferred[0]
            self._handle(deferred)
            self._answered = None
        self._taken_in()
