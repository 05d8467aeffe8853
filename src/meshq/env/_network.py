"""TCP streams.

trio's own socket methods are coroutines, and each of them passes through the scheduler: 39 µs for a round
trip of 64 bytes where plain sockets take 13.  Almost always a socket has room for what is to be sent, and
under load it has bytes to read; so both are tried at once on a non-blocking socket, and trio is asked to wait
only when the system says "not now".
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, NoReturn

import trio

from meshq.abc import Buffer, Listener, Network, Stream
from meshq.errors import BusyError, ClosedError, ConnectionBrokenError, UsageError, caused
from meshq.limits import CHECKPOINT_MESSAGES, MIB

PORT_MAX: Final = 65_535
#: Pieces that one ``sendmsg`` takes; POSIX promises 16, Linux and macOS have 1,024.
PIECES_MAX: Final = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16
#: Bytes after which no more pieces are gathered for a ``sendmsg``: about what a system takes at once.
SEND_BYTES: Final = 1 * MIB
#: Windows has no ``sendmsg``.
GATHERS: Final = hasattr(socket.socket, "sendmsg")
#: Says of a connection that nothing more comes, though what has come is not read yet; Windows has no ``poll``.
POLLS: Final = hasattr(select, "poll")
ENDED: Final[int] = getattr(select, "POLLRDHUP", 0)
#: Connections that wait to be accepted; after a failover all clients come at once.
BACKLOG: Final = 1_024
#: A network error that was waiting on the new connection comes out of ``accept``; the next one may be well.
ACCEPT_NEXT: Final = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENETDOWN",
        "ENETUNREACH",
        "ENONET",
        "ENOPROTOOPT",
        "EOPNOTSUPP",
        "EPERM",
        "EPROTO",
    )
    if hasattr(errno, name)
)


def _endpoint(address: tuple[str | int, ...]) -> str:
    """``host:port`` of a socket address, with brackets around an IPv6 host."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _check_port(host: str, port: int) -> None:
    """Refuse a port that does not exist: the system would take port 65,616 for port 80."""
    if not 0 <= port <= PORT_MAX:
        raise OSError(errno.EADDRNOTAVAIL, f"{port} is no port; allowed: 0 to {PORT_MAX}", host)


class TcpStream(Stream):
    """A connected TCP socket."""

    __slots__ = (
        "_calls",
        "_closed",
        "_descriptor",
        "_flushing",
        "_may_send",
        "_peer",
        "_reading",
        "_send_error",
        "_socket",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(self, connected: socket.socket, peer: str) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._socket = connected
        #: Never used once closed: the system gives the number to the next file.
        self._descriptor = connected.fileno()
        self._peer = peer
        #: Whether waiting bytes may leave; None: they may.
        self._may_send: Callable[[], bool] | None = None
        #: The bytes that the system has not taken yet, in order; never an empty piece.
        self._waiting: deque[memoryview] = deque()
        #: The sum of the sizes of ``_waiting``.
        self._waiting_bytes = 0
        #: The error that broke sending.  Received bytes may still be read.
        self._send_error: OSError | None = None
        #: Calls of ``receive`` since the last one that passed through the scheduler.
        self._calls = 0
        self._reading = False
        self._flushing = False
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._send_error else "open"
        return f"<TcpStream {self._peer} {state} waiting_bytes={self._waiting_bytes}>"

    @property
    def peer(self) -> str:
        return self._peer

    def send_nowait(self, data: Buffer) -> int:
        if self._send_error is not None or self._closed:
            self._refuse()
        sent = 0
        if not self._waiting_bytes:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError as error:
                self._broke(error)
        view = memoryview(data)
        if sent != view.nbytes:
            self._keep(view, sent)
        return self._waiting_bytes

    async def flush(self) -> None:
        if self._flushing:
            raise BusyError(f"two tasks flush the stream to {self._peer}")
        if self._send_error is not None or self._closed:
            self._refuse()
        self._flushing = True
        try:
            while self._waiting_bytes:
                try:
                    await trio.lowlevel.wait_writable(self._descriptor)
                except trio.ClosedResourceError:
                    self._refuse()
                self._send_waiting()
        finally:
            self._flushing = False

    async def receive(self, size_max: int) -> bytes:
        if self._reading:
            raise BusyError(f"two tasks read the stream from {self._peer}")
        if size_max < 1:
            raise UsageError(f"size_max={size_max} is not allowed; allowed: 1 or more")
        self._calls += 1
        if self._calls < CHECKPOINT_MESSAGES:
            data = self._receive_nowait(size_max)
            if data is not None:
                return data
        self._calls = 0
        self._reading = True
        try:
            while True:
                await self._readable()
                data = self._receive_nowait(size_max)
                if data is not None:
                    return data
        finally:
            self._reading = False

    def bound(self, may_send: Callable[[], bool]) -> None:
        self._may_send = may_send

    def gone(self) -> bool:
        if self._send_error is not None or self._closed:
            return True
        if not POLLS:
            return False
        look = select.poll()
        look.register(self._descriptor, ENDED)
        # An error and an end of both directions are told whether they are asked for or not.
        return bool(look.poll(0))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        self._waiting_bytes = 0
        trio.lowlevel.notify_closing(self._descriptor)
        self._socket.close()

    async def _readable(self) -> None:
        if self._closed:
            self._refuse()
        try:
            await trio.lowlevel.wait_readable(self._descriptor)
        except trio.ClosedResourceError:
            self._refuse()

    def _receive_nowait(self, size_max: int) -> bytes | None:
        """Return received bytes; None if there are none."""
        try:
            data = self._socket.recv(size_max)
        except BlockingIOError:
            return None
        except OSError as error:
            if self._closed:
                self._refuse()
            raise self._lost(error) from error
        if not data and self._send_error is not None:
            # A reset that sending has already met looks like an orderly end to a later read.
            self._refuse()
        return data

    def _send_waiting(self) -> None:
        """Send as many waiting bytes as the system takes."""
        if not self._waiting:
            return
        if self._may_send is not None and not self._may_send():
            self._broke(OSError(errno.ESTALE, "what waits may not be sent any more"))
        pieces: list[memoryview] = []
        size = 0
        for piece in islice(self._waiting, PIECES_MAX):
            pieces.append(piece)
            size += piece.nbytes
            if size >= SEND_BYTES:
                break
        try:
            sent = self._socket.sendmsg(pieces) if GATHERS else self._socket.send(pieces[0])
        except BlockingIOError:
            return
        except OSError as error:
            self._broke(error)
        self._waiting_bytes -= sent
        while sent:
            piece = self._waiting.popleft()
            if sent < piece.nbytes:
                self._waiting.appendleft(piece[sent:])
                break
            sent -= piece.nbytes

    def _keep(self, view: memoryview, sent: int) -> None:
        """Keep the unsent bytes; as a copy if their owner could change them."""
        rest = view.cast("B")[sent:]
        self._waiting.append(rest if type(view.obj) is bytes else memoryview(bytes(rest)))
        self._waiting_bytes += rest.nbytes

    def _broke(self, error: OSError) -> NoReturn:
        """Note that sending has failed for good, and raise."""
        self._send_error = error
        self._waiting.clear()
        self._waiting_bytes = 0
        raise self._lost(error)

    def _refuse(self) -> NoReturn:
        """Raise the error of a stream that was closed here, or has failed before."""
        if self._closed:
            shut = ClosedError("this side has closed the connection")
            raise ConnectionBrokenError(f"the connection to {self._peer} is closed") from shut
        error = self._send_error
        assert error is not None
        raise self._lost(error)

    def _lost(self, error: OSError) -> ConnectionBrokenError:
        lost = ConnectionBrokenError(f"the connection to {self._peer} is lost: {error.strerror or error}")
        return caused(lost, error)


class TcpListener(Listener):
    """A listening TCP socket."""

    __slots__ = ("_accepting", "_closed", "_descriptor", "_port", "_socket")

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._descriptor = listening.fileno()
        self._port: int = listening.getsockname()[1]
        self._accepting = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<TcpListener port={self._port} {'closed' if self._closed else 'open'}>"

    @property
    def port(self) -> int:
        return self._port

    async def accept(self) -> Stream:
        if self._accepting:
            raise BusyError(f"two tasks accept on port {self._port}")
        self._accepting = True
        try:
            while True:
                await self._acceptable()
                stream = self._accept_nowait()
                if stream is not None:
                    return stream
        finally:
            self._accepting = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._descriptor)
            self._socket.close()

    async def _acceptable(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            raise ClosedError(f"the listener on port {self._port} is closed")
        try:
            await trio.lowlevel.wait_readable(self._descriptor)
        except trio.ClosedResourceError:
            raise ClosedError(f"the listener on port {self._port} is closed") from None

    def _accept_nowait(self) -> Stream | None:
        """Accept the next connection; None if there is none, or if it is already gone."""
        try:
            connected, address = self._socket.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in ACCEPT_NEXT:
                return None
            raise
        try:
            return TcpStream(connected, _endpoint(address))
        except OSError:
            # macOS refuses options on a connection that the peer has reset already.
            connected.close()
            return None


def _reason(error: Exception) -> str:
    """Return why no connection could be made: the system's text for each address, without repetitions."""
    causes = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else (error,)
    return ", ".join(dict.fromkeys(map(_text_of, causes)))


def _text_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error)


class TcpNetwork(Network):
    """TCP of this host."""

    __slots__ = ()

    async def connect(self, host: str, port: int) -> Stream:
        try:
            _check_port(host, port)
            # Tries all addresses of the host, the families in turn, and leaves nothing open when cancelled.
            opened = await trio.open_tcp_stream(host, port)
        except (OSError, UnicodeError) as error:
            await trio.lowlevel.checkpoint()
            raise ConnectionBrokenError(
                f"{_endpoint((host, port))} can't be reached: {_reason(error)}", outcome="not_done"
            ) from error
        peer = _endpoint((host, port))
        connected = socket.socket(fileno=opened.socket.detach())
        try:
            peer = _endpoint(connected.getpeername())
            return TcpStream(connected, peer)
        except OSError as error:
            connected.close()
            raise ConnectionBrokenError(f"{peer} has closed at once: {error}", outcome="not_done") from error

    async def listen(self, host: str, port: int) -> Listener:
        """Listen on one address of ``host``: its first IPv4 address if it has one, else its first address."""
        _check_port(host, port)
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        await trio.lowlevel.checkpoint()
        family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setblocking(False)
            if os.name == "posix":
                # Elsewhere this option would let a second listener take over the port.
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            if family == socket.AF_INET6:
                # What is written is what is bound, on every system: "::" does not take IPv4, too.
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, True)
            listening.bind(address)
            listening.listen(BACKLOG)
            return TcpListener(listening)
        except BaseException:
            listening.close()
            raise
