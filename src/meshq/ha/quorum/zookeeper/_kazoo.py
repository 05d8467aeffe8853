"""A client of ZooKeeper: kazoo, whose threads belong to the session, behind requests that a task waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import attrs
import trio

from meshq.abc import Threads
from meshq.concurrency import ChangeSignal
from meshq.errors import ConnectionBrokenError, MeshqError, SecurityError, SettingsError, UsageError, caused
from meshq.ha.quorum.zookeeper._lock_node_machine import (
    Answer,
    Check,
    Create,
    Delete,
    Found,
    Look,
    Make,
    Put,
    Read,
    Request,
    Sync,
    Write,
)
from meshq.logs import logger
from meshq.settings import TLS, Secret

#: Its threads are left alone when a session has ended and servers do not answer.
_POOL: Final = "discovery of zookeeper"
#: Both directions of a connection.
_BOTH: Final = 2
_MILLISECONDS: Final = 1_000.0
#: kazoo waits for a sign of life for two thirds of the session.
_SESSION_OF_READING: Final = 1.5


def check_installed() -> None:
    """Check that kazoo is installed.  Raises: UsageError: it isn't; says how to install it."""
    _kazoo()


def _kazoo() -> Any:
    try:
        import kazoo.client
        import kazoo.exceptions
        import kazoo.handlers.threading
        import kazoo.security
    except ImportError as error:
        raise UsageError("a quorum of ZooKeeper needs the package kazoo: pip install 'meshq[zookeeper]'") from error
    return kazoo


@attrs.frozen(kw_only=True)
class EnsembleSettings:
    """How an ensemble is reached: its servers, the credentials, TLS or its context, and times in seconds."""

    hosts: str
    session_s: float
    connection_timeout_s: float
    retry_interval_s: float
    auth: tuple[str, Secret] | None
    tls: Any


class Whisper(logging.LoggerAdapter[logging.Logger]):
    """The log of kazoo, at the lowest level: callers are told of lost connections by errors."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log at the level DEBUG at most."""
        super().log(min(level, logging.DEBUG), msg, *args, **kwargs)


class Ensemble(Protocol):
    """A way to an ensemble, as a session of a quorum uses it."""

    #: Why no server will do; None: none has said so, or one has taken the session since.
    refusal: MeshqError | None
    #: The server that was connected last.
    server: tuple[str, int]
    #: When the write was sent that was answered last.
    wrote_at: float

    def start(self) -> None:
        """Begin to connect; returns at once."""

    async def stop(self, seconds: float) -> None:
        """End the session at the ensemble, if a server can be asked in that time."""

    async def ask(self, request: Request, *, connect_s: float, answer_s: float) -> Answer:
        """Ask an ensemble; wait so long for a connection, and so long for the answer."""


class KazooSession:
    """A session at an ensemble, which kazoo connects again as often as it is necessary, and begins again.

    ``ended`` is called in the loop when a session at the ensemble has ended: its ephemeral nodes are gone.
    """

    def __init__(self, settings: EnsembleSettings, threads: Threads, ended: Callable[[], None]) -> None:
        self._settings = settings
        self._threads = threads
        self._ended = ended
        self._kazoo = _kazoo()
        self._token: trio.lowlevel.TrioToken | None = None
        self._changed = ChangeSignal()
        self._socket: Any = None
        self.refusal: MeshqError | None = None
        # Why the last connection came to nothing.
        self._failure: BaseException | None = None
        self.server: tuple[str, int] = ("", 0)
        # The server that has said nothing, and is left out once.
        self._silent: tuple[str, int] | None = None
        self.wrote_at: float = 0.0
        self._client = self._made()

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._token = trio.lowlevel.current_trio_token()
        self._client.start_async()

    async def stop(self, seconds: float) -> None:
        """End the session at the ensemble, if a server can be asked in that time; its nodes are gone then."""
        with trio.move_on_after(seconds) as scope:
            await self._threads.run(self._stopped, pool=_POOL)
        if scope.cancelled_caught:
            self.cut()

    async def ask(self, request: Request, *, connect_s: float, answer_s: float) -> Answer:
        """Ask an ensemble; wait so long for a connection, and so long for the answer.

        A connection over which no answer comes in time is cut, so that the next question goes to another server.

        Checkpoint: always.
        Cancellation: the request may be carried out.
        Raises:
            ConnectionBrokenError: there is no connection, or no answer.
            SecurityError: the ensemble refuses the credentials.
            SettingsError: the servers allow no such session.
        """
        await self._connected(connect_s)
        began = trio.current_time()
        pending = self._send(request)
        done = trio.Event()
        pending.rawlink(lambda result: self._in_loop(done.set))
        with trio.move_on_after(answer_s):
            await done.wait()
        if not done.is_set():
            self.leave()
            late = TimeoutError(f"waited {answer_s:g} s for an answer")
            raise ConnectionBrokenError("a ZooKeeper server does not answer in time", outcome="unknown") from late
        if self.refusal is not None:
            raise self.refusal
        answer = self._answer(request, pending)
        if type(request) is Write:
            self.wrote_at = began
        return answer

    def dial(
        self, create: Callable[..., Any], address: Any, hostname: Any = None, timeout: Any = None, **_: Any
    ) -> Any:
        """In kazoo's thread: make a connection to a server, but for one that has just said nothing."""
        given = self._settings
        patience = min(timeout or given.connection_timeout_s, given.connection_timeout_s)
        if address == self._silent:
            self._silent = None
            raise ConnectionRefusedError(f"{address[0]}:{address[1]} has just said nothing")
        try:
            # Before there is a connection, which a file that can't be read would leave open.
            context = self._context()
            stream = create(address, hostname=hostname, timeout=patience)
            if context is not None:
                stream = context.wrap_socket(stream, server_hostname=hostname)
        except SettingsError as error:
            self.refusal = error
            # The files may be right later.
            raise ConnectionAbortedError(str(error)) from error
        except Exception as error:
            self._failure = error
            raise
        self._socket, self.server = stream, address
        return stream

    def _context(self) -> Any:
        tls = self._settings.tls
        if not isinstance(tls, TLS):
            return tls
        from meshq.env import client_context

        return client_context(tls)

    def login(self, connect: Callable[..., Any], *arguments: Any) -> Any:
        """In kazoo's thread: connect, and note whether the server will do.

        kazoo keeps the length of the granted session to itself, and connects no more once a user was refused.
        """
        try:
            timeouts = connect(*arguments)
        except self._kazoo.exceptions.AuthFailedError as error:
            self.refusal = caused(SecurityError("ZooKeeper refuses the user and the password"), error)
            # Another server, or this one later, may take them.
            raise self._kazoo.exceptions.ConnectionDropped("the user was refused") from error
        self.refusal = self._judged(timeouts[0] * _SESSION_OF_READING / _MILLISECONDS)
        self._failure = self._silent = None
        return timeouts

    def leave(self) -> None:
        """Cut the connection to a server that says nothing; another one is asked next."""
        self._silent = self.server
        self.cut()

    def cut(self) -> None:
        """Cut the connection; kazoo looks for another server."""
        if self._socket is not None:
            try:
                self._socket.shutdown(_BOTH)
            except OSError:
                # It is closed already.
                return

    def _made(self) -> Any:
        given, interval_s = self._settings, self._settings.retry_interval_s
        handler = self._kazoo.handlers.threading.SequentialThreadingHandler()
        handler.create_connection = partial(self.dial, handler.create_connection)
        retry = {"max_tries": -1, "delay": min(interval_s, 0.1), "backoff": 2, "max_delay": interval_s}
        security = self._kazoo.security
        client = self._kazoo.client.KazooClient(
            hosts=given.hosts,
            timeout=given.session_s,
            handler=handler,
            connection_retry=retry,
            logger=Whisper(logger("ha.quorum.zookeeper")),
            auth_data=None if given.auth is None else [("digest", f"{given.auth[0]}:{given.auth[1].reveal()}")],
            default_acl=None if given.auth is None else security.CREATOR_ALL_ACL,
        )
        client.add_listener(self._heard)
        client._connection._connect = partial(self.login, client._connection._connect)
        return client

    def _judged(self, session_s: float) -> SettingsError | None:
        """Return the error for a session of the length that the server gives; None: the length is right."""
        wanted = self._settings.session_s
        if abs(session_s - wanted) <= 2 / _MILLISECONDS:
            return None
        bound = "at least" if session_s > wanted else "at most"
        return SettingsError("session", wanted, f"{bound} {session_s:g} seconds: 2 to 20 ticks of the ZooKeeper server")

    def _heard(self, state: str) -> None:
        """In kazoo's thread: the connection, or the session, is another one."""
        if state == "LOST":
            self._in_loop(self._ended)
        self._in_loop(self._changed.tell)

    def _in_loop(self, call: Callable[[], object]) -> None:
        assert self._token is not None
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            # Nobody waits any more.
            return

    def _stopped(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except self._kazoo.exceptions.WriterNotClosedException:
            # No server has said goodbye; kazoo's thread ends by itself.
            return

    async def _connected(self, seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(seconds):
            while not self._client.connected:
                await self._changed.wait()
            return
        # One that is stopped takes a connection, and says nothing.
        self.leave()
        if self.refusal is not None:
            raise self.refusal
        failure = self._failure or TimeoutError(f"waited {seconds:g} s for a connection")
        text = f"no ZooKeeper server of {self._settings.hosts} can be reached"
        raise caused(ConnectionBrokenError(text, outcome="not_done"), failure)

    def _send(self, request: Request) -> Any:
        match request:
            case Sync(path):
                return self._client.sync_async(path)
            case Read(path):
                return self._client.get_async(path)
            case Look(path):
                return self._client.get_acls_async(path)
            case Make(path, shared):
                # Without one: to all when there is no user, and else to the user alone.
                access = [self._kazoo.security.make_acl("world", "anyone", read=True, create=True)] if shared else None
                return self._client.create_async(path, b"", acl=access)
            case Write(parts):
                writing = self._client.transaction()
                for part in parts:
                    _add(writing, part)
                return writing.commit_async()

    def _answer(self, request: Request, pending: Any) -> Answer:
        errors = self._kazoo.exceptions
        try:
            value = pending.get_nowait()
        except errors.NoNodeError:
            return None
        except errors.NodeExistsError:
            return None
        except (errors.NoAuthError, errors.AuthFailedError) as error:
            raise self._refused() from error
        except errors.KazooException as error:
            raise ConnectionBrokenError("the connection to ZooKeeper broke", outcome="unknown") from error
        if type(request) is Read:
            data, facts = value
            return Found(data, facts.version, facts.ephemeralOwner == (self._client.client_id or (0,))[0])
        if type(request) is Look:
            only_read = self._kazoo.security.Permissions.READ
            return not any(one.id.scheme == "world" and one.perms & ~only_read for one in value[0])
        if type(request) is Write:
            if any(isinstance(one, errors.NoAuthError) for one in value):
                raise self._refused()
            return not any(isinstance(one, Exception) for one in value)
        return None

    def _refused(self) -> SecurityError:
        return SecurityError("ZooKeeper refuses this user: what it is to write belongs to another one")


def _add(writing: Any, part: Check | Put | Create | Delete) -> None:
    match part:
        case Check(path, version):
            writing.check(path, version)
        case Put(path, data, version):
            writing.set_data(path, data, version)
        case Create(path, data):
            writing.create(path, data, ephemeral=True)
        case Delete(path):
            writing.delete(path)
