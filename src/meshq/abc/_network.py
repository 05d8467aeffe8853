"""Byte streams, their listeners, and TLS over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from meshq.abc._buffer import Buffer


class Stream(ABC):
    """A byte stream to a peer; one task reads, one task sends at a time."""

    @abstractmethod
    def send_nowait(self, data: Buffer) -> int:
        """Take all of ``data``; return the number of bytes that wait to be sent.

        Raises:
            ConnectionBrokenError: the stream is broken or closed.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Wait until all taken bytes are sent.

        Checkpoint: when bytes wait.  Cancellation: these bytes still wait.
        Raises: ConnectionBrokenError.
        """

    @abstractmethod
    async def receive(self, size_max: int) -> bytes:
        """Receive at least one and at most ``size_max`` bytes; ``b""`` when the peer has closed in an orderly way.

        Checkpoint: when nothing has arrived yet, and at least every 64th call.  Cancellation: nothing is lost.
        Raises: ConnectionBrokenError; SecurityError if the other side says under TLS that it does not believe us.
        """

    def bound(self, may_send: Callable[[], bool]) -> None:
        """Let bytes that wait to be sent leave only while ``may_send()`` is true; from then on the stream is broken.

        A stream that hands all bytes over at once has nothing to do here.
        """
        return

    def gone(self) -> bool:
        """Whether the stream is known to be broken or ended by the peer, without reading the received bytes."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close at once: unsent bytes are dropped, ``flush`` and ``receive`` raise.  Closing twice is silent."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """The address of the peer, ``host:port``, for logs and errors."""

    @property
    def binding(self) -> bytes:
        """The SHA-256 of the server's certificate, the same at both ends; empty without TLS."""
        return b""

    @property
    def identities(self) -> tuple[str, ...]:
        """At a server: the names in the client's verified certificate, such as ``CN=app``."""
        return ()

    @property
    def server_name(self) -> str:
        """At a server under TLS: the host name that the client asked for (SNI), or empty."""
        return ""


class Listener(ABC):
    """A listening endpoint."""

    @abstractmethod
    async def accept(self) -> Stream:
        """Accept the next connection.  Checkpoint: always.  Cancellation: no connection is lost.
        Raises: ClosedError once closed; OSError if the system refuses for the moment (too many open files)."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port that is bound, also where port 0 was asked for."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening.  Closing twice is silent."""


class TlsSide(ABC):
    """A side of TLS connections, with certificates and keys that are loaded."""

    @abstractmethod
    async def wrap(self, stream: Stream, host: str | None = None) -> Stream:
        """Run the TLS handshake over ``stream`` and return an encrypted stream, which replaces and closes ``stream``.

        ``host``: at a client, the name that the certificate of the other side must have.

        Checkpoint: always.  Cancellation: ``stream`` is closed.
        Raises: SecurityError if one side does not believe the other, ConnectionBrokenError; ``stream`` is closed."""


class Tls(ABC):
    """TLS 1.3.  ``tls`` is ``meshq.TLS``, an ``ssl.SSLContext`` or, at a client, None."""

    @abstractmethod
    def server(self, tls: object) -> TlsSide:
        """Load the side of an acceptor.  Blocks while the files are read.
        Raises: SettingsError if they can't be used, or a context allows less than TLS 1.3."""

    @abstractmethod
    def client(self, tls: object) -> TlsSide:
        """Load the side that connects, which verifies the server's certificate.
        Raises: SettingsError, as ``server``; also if a context would believe everybody."""


class Network(ABC):
    """Byte streams between hosts."""

    @abstractmethod
    async def connect(self, host: str, port: int) -> Stream:
        """Open a stream.  Checkpoint: always.  Cancellation: nothing is left.  Raises: ConnectionBrokenError."""

    @abstractmethod
    async def listen(self, host: str, port: int) -> Listener:
        """Listen; port 0 chooses a free one.  Checkpoint: always.  Cancellation: nothing listens.  Raises: OSError."""
