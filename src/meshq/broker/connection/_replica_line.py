"""A connection by which another node follows the log of the broker's node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs

from meshq import abc, limits
from meshq.errors import invariant
from meshq.wire import (
    ConnectionMachine,
    ConnectionState,
    Frame,
    FrameType,
    IncomingStream,
    Link,
    Log,
    Logged,
    Replicate,
    decline,
    header_of,
)

#: A policy that has replicas, with the frames of the protocol.
#: No link ends by a shorter silence.
SILENCE_S_MIN = 1.0

ReplicaHost: TypeAlias = abc.ReplicaHost[Replicate, Log, Logged]


class ReplicaConnection(abc.ReplicaLine[Log]):
    """The line to one replica, and its end at the policy.

    ``closing``: ends the connection with a text.
    """

    def __init__(self, link: Link, machine: ConnectionMachine, closing: Callable[[str], None]) -> None:
        self._link = link
        self._machine = machine
        self._closing = closing
        self._incoming = IncomingStream()
        self._sent = 0
        self._ended = False
        self._end: abc.ReplicaEnd[Logged] | None = None

    def begin(self, host: ReplicaHost | None, wanted: Replicate) -> float:
        """Hand the link to the policy; return the silence after which the link ends.

        Raises:
            MeshqError: there is none that has replicas, or it does not want this one.
        """
        if host is None:
            raise decline("role_not_served", "the node has no policy by which another one follows its log")
        self._end = host.follow(wanted, self, self._link.peer)
        return max(SILENCE_S_MIN, min(wanted.ttl_ms / 1000, host.silence_s_max))

    def take(self, frame: Frame) -> None:
        """Take a frame of the replica.  Raises: MeshqError."""
        if frame.type is FrameType.LOGGED:
            self._incoming.accept(frame)
            if self._end is not None:
                self._end.heard(header_of(frame, Logged), frame.first)

    def send(self, piece: Log, first: int = 0, body: bytes = b"") -> None:
        """Put a piece in line, in several frames if need be; silent once the good-bye was said."""
        if self._ended or self._machine.state is not ConnectionState.REPLICATING:
            return
        invariant(first >= 0, "a position is not negative")
        size, header = limits.BODY_BYTES_MAX, piece.encode()
        for start in range(0, max(len(body), 1), size):
            more = start + size < len(body)
            self._machine.sending(FrameType.LOG)
            self._sent += 1
            said = header if not more else attrs.evolve(piece, more=True).encode()
            self._link.send(
                Frame(FrameType.LOG, number=self._sent, first=first, header=said, body=body[start : start + size])
            )

    def flush(self) -> int:
        """Write the pieces that are in line."""
        if not self._ended:
            self._link.flush()
        return getattr(self._link, "waiting", 0)

    def end(self, text: str) -> None:
        """End the connection."""
        if not self._ended:
            self._closing(text)

    def drained(self) -> None:
        """Tell the policy that nothing waits unsent."""
        if self._end is not None and not self._ended:
            self._end.drained()

    def leaving(self) -> None:
        """Have the policy say its last word."""
        if self._end is not None and not self._ended:
            self._end.leaving()

    def lost(self) -> None:
        """Tell the policy that the link has ended."""
        if not self._ended:
            self._ended = True
            if self._end is not None:
                self._end.lost()
