"""Links between two objects of one process, and who opens these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

FrameT = TypeVar("FrameT")


class FrameReceiver(Protocol[FrameT]):
    """The owner of one side of a link, which is told of its frames and its end."""

    def frames(self, frames: list[FrameT], /) -> None:
        """Take a batch of frames that has arrived; must not raise."""

    def lost(self) -> None:
        """Note that the other side, or the outside, has ended a link within the process; called once, and not after
        a ``close`` by the receiver's side."""

    def backlogged(self) -> None:
        """Note that bytes of a stream wait unsent; the receiver's writer then awaits ``stream.flush()``."""


class FrameLink(ABC, Generic[FrameT]):
    """A side of a link: frames out by a call, frames in to the receiver."""

    #: The link can't lose a frame without losing both sides: nothing needs to be kept for a resume.
    lossless: bool
    #: In process or on the loopback device, or under TLS: bodies arrive as they were sent.
    local: bool
    peer: str
    #: SHA-256 of the server's certificate, the same at both ends; empty without TLS.
    binding: bytes = b""
    #: At a server: who the certificate of the client says it is.
    identities: tuple[str, ...] = ()
    #: At a server under TLS: the host name that the client has asked for; empty if it named none.
    server_name: str = ""
    #: Bytes that waited unsent when something was sent last.
    waiting: int = 0

    @abstractmethod
    def start(self, receiver: FrameReceiver[FrameT]) -> None:
        """Begin to hand over received frames; called once, before anything is sent or received."""

    @abstractmethod
    def send(self, frame: FrameT) -> None:
        """Queue a frame, to be sent by the next ``flush``.  After ``close`` the frame is dropped."""

    @abstractmethod
    def flush(self) -> None:
        """Send the queued frames.  A broken stream is reported through its reader, not here."""

    @abstractmethod
    def close(self) -> None:
        """End the link at once; queued frames are sent if that needs no waiting.  Twice is silent."""

    @abstractmethod
    def admit(self) -> None:
        """Allow frames as large as the protocol permits, because the other side is authenticated."""


class LocalAcceptor(Protocol):
    """The acceptor of a broker for clients in the same process."""

    def connect_local(self, label: str) -> FrameLink[Any]:
        """Return the client's end of a new link, which carries frames of the protocol.

        Raises:
            ConnectionBrokenError: the broker has stopped; outcome not done.
            UsageError: the broker runs in another event loop of this process.
        """
