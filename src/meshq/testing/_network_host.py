"""Hosts of the memory network: the connections and listeners of a kernel, and the process that runs there."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import trio

from meshq.abc import Listener, Network, Stream
from meshq.errors import BusyError, ClosedError, ConnectionBrokenError
from meshq.testing._network_link import OPEN, Link, NetworkContext
from meshq.testing._network_stream import MemoryStream, WaitingPlace

#: Names by which a host reaches itself.
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
#: Names under which a listener hears everybody.
WILDCARD: Final = ("", "0.0.0.0", "::")
#: Ports from here on are given to connections and to listeners that asked for any.
EPHEMERAL_PORT_MIN: Final = 49_152
PORT_MAX: Final = 65_535


class HostContext(NetworkContext, Protocol):
    """The part of a network that its hosts use."""

    def find(self, name: str) -> NetworkHost | None:
        """The host of that name."""

    def link(self, source: str, target: str) -> Link:
        """The way from one host to another."""


class NetworkHost:
    """A machine: its connections and listeners, whether it has power and whether its process may run."""

    __slots__ = (
        "deferred",
        "fabric",
        "files_exhausted",
        "ghosts",
        "listeners",
        "name",
        "network",
        "next_port",
        "off",
        "paused",
        "streams",
    )

    def __init__(self, fabric: HostContext, name: str) -> None:
        self.fabric: HostContext = fabric
        self.name: str = name
        self.off: bool = False
        #: The process stands still; the kernel does not.
        self.paused: bool = False
        #: The process has as many files open as it may: it can accept nothing.
        self.files_exhausted: bool = False
        #: What the process asked for while it stood still.
        self.deferred: list[Callable[[], None]] = []
        #: Connections that are neither closed here nor void.
        self.streams: dict[MemoryStream, None] = {}
        self.listeners: dict[int, MemoryListener] = {}
        #: Connections lost with the power, whose peers have sent since: they hear of it when power is back.
        self.ghosts: dict[MemoryStream, None] = {}
        self.next_port: int = EPHEMERAL_PORT_MIN
        self.network: HostNetwork = HostNetwork(self)

    def __repr__(self) -> str:
        state = "off" if self.off else "dead" if self.network.dead else "paused" if self.paused else "running"
        return f"<NetworkHost {self.name} {state} streams={len(self.streams)}>"

    def free_port(self) -> int:
        """A port that no listener has."""
        while True:
            port = self.next_port
            self.next_port = EPHEMERAL_PORT_MIN if port == PORT_MAX else port + 1
            if port not in self.listeners:
                return port

    def kill(self) -> None:
        """SIGKILL of the process: the kernel closes all that it had open."""
        deferred = self._end_process()
        for action in deferred:
            action()
        for listener in list(self.listeners.values()):
            listener.abandon()
        for stream in list(self.streams):
            stream.abandon()

    def power_off(self) -> None:
        """Cut the power; the peers are told nothing."""
        self._end_process()
        self.off = True
        for stream in list(self.streams):
            stream.lose_power()
        for listener in list(self.listeners.values()):
            listener.abandon()

    def start(self) -> None:
        """A new process, on a machine that is switched on if it was not."""
        self.off = False
        self.network = HostNetwork(self)
        now = trio.current_time()
        ghosts, self.ghosts = self.ghosts, {}
        for stream in ghosts:
            late = self.fabric.rng.uniform(0.0, self.fabric.settings.retransmit_s_max)
            self.fabric.at(now + late, stream.answer_void)

    def resume(self) -> None:
        """Let the process run again: it sees at once all that has come meanwhile."""
        self.paused = False
        deferred, self.deferred = self.deferred, []
        for action in deferred:
            action()
        self.network.resumed()
        for stream in list(self.streams):
            stream.pump()
            stream.wake_if_running()
        for listener in self.listeners.values():
            listener.wake_if_running()

    def when_running(self, action: Callable[[], None]) -> None:
        """Do it now, or when the process runs again; never if it is dead."""
        if self.paused:
            self.deferred.append(action)
        else:
            action()

    def _end_process(self) -> list[Callable[[], None]]:
        """End the process; return the calls that the process had made while it was paused."""
        self.network.dead = True
        self.paused = False
        deferred, self.deferred = self.deferred, []
        return deferred


class MemoryListener(Listener):
    """A listening endpoint of a simulated host."""

    __slots__ = ("_acceptable", "_accepting", "_closed", "_dead", "_host", "_loopback", "_port", "backlog")

    def __init__(self, host: NetworkHost, port: int, *, loopback: bool) -> None:
        self._host = host
        self._port = port
        self._loopback = loopback
        #: Connections made and not accepted yet.
        self.backlog: deque[MemoryStream] = deque()
        self._acceptable = WaitingPlace()
        self._accepting = False
        self._closed = False
        #: The process died; ``accept`` returns only when cancelled.
        self._dead = False

    def __repr__(self) -> str:
        return f"<MemoryListener {self._host.name}:{self._port} {'closed' if self._closed else 'open'}>"

    @property
    def port(self) -> int:
        return self._port

    async def accept(self) -> Stream:
        if self._accepting:
            raise BusyError(f"two tasks accept on port {self._port}")
        self._accepting = True
        try:
            await trio.lowlevel.checkpoint()
            while not self._closed and (self._host.paused or not self.backlog):
                await self._acceptable.wait()
            if self._dead:
                await trio.sleep_forever()
            if self._closed:
                raise ClosedError(f"the listener on port {self._port} is closed")
            if self._host.files_exhausted:
                self._host.fabric.counters["files_exhausted"] += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return self.backlog.popleft()
        finally:
            self._accepting = False

    def close(self) -> None:
        if not self._closed:
            self._end()
            self._acceptable.wake()

    def abandon(self) -> None:
        """The process died."""
        self._dead = True
        self._end()

    def hears(self, source: NetworkHost) -> bool:
        """Whether a connection from ``source`` gets here."""
        return not self._loopback or source is self._host

    def arrived(self, stream: MemoryStream) -> None:
        """A connection was made."""
        self.backlog.append(stream)
        self.wake_if_running()

    def wake_if_running(self) -> None:
        """Tell the process that connections wait to be accepted, unless the process is paused."""
        if not self._host.paused:
            self._acceptable.wake()

    def _end(self) -> None:
        self._closed = True
        self._host.listeners.pop(self._port, None)
        while self.backlog:
            stream = self.backlog.popleft()
            if not self._host.off:
                stream.reset()


class HostNetwork(Network):
    """The network as one process of a simulated host sees it.

    Once that process is dead nothing here returns until it is cancelled: its tasks never run again, or the test
    that killed it ends them.
    """

    __slots__ = ("_host", "_resumed", "dead")

    def __init__(self, host: NetworkHost) -> None:
        self._host = host
        self._resumed = trio.Event()
        #: The process was killed, or its host lost power.
        self.dead: bool = False

    async def connect(self, host: str, port: int) -> Stream:
        await self.may_run()
        world, here = self._host.fabric, self._host
        target = here if host in LOOPBACK else world.find(host)
        if target is None or not 0 < port <= PORT_MAX:
            text = f"{host}:{port} can't be reached: no such host"
            raise ConnectionBrokenError(text, outcome="not_done") from OSError("no such host")
        stream = MemoryStream(world, here, target, world.link(here.name, target.name), f"{host}:{port}")
        _Attempt(world, stream, target, here, port).send()
        try:
            await stream.connected()
        except BaseException:
            stream.close()
            raise
        return stream

    async def listen(self, host: str, port: int) -> Listener:
        await self.may_run()
        here = self._host
        if host not in (*LOOPBACK, *WILDCARD, here.name) or not 0 <= port <= PORT_MAX:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), f"{host}:{port}")
        if port in here.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"{host}:{port}")
        port = port or here.free_port()
        here.listeners[port] = listener = MemoryListener(here, port, loopback=host in LOOPBACK)
        return listener

    def resumed(self) -> None:
        """The process runs again."""
        self._resumed.set()
        self._resumed = trio.Event()

    async def may_run(self) -> None:
        """Let others run; then wait while the process is paused, and for ever once it is dead.

        Checkpoint: always.  Cancellation: nothing has changed.
        """
        await trio.lowlevel.checkpoint()
        while self._host.paused and not self.dead:
            await self._resumed.wait()
        if self.dead:
            await trio.sleep_forever()


class _Attempt:
    """An attempt to connect, whose first segment is sent again until an answer comes."""

    __slots__ = (
        "_answered",
        "_local_port",
        "_pause_s",
        "_port",
        "_source",
        "_stream",
        "_target",
        "_waited_s",
        "_world",
    )

    def __init__(
        self, world: HostContext, stream: MemoryStream, target: NetworkHost, source: NetworkHost, port: int
    ) -> None:
        self._world = world
        self._stream = stream
        self._target = target
        self._source = source
        self._port = port
        self._local_port = source.free_port()
        self._pause_s = world.settings.connect_retry_s
        self._waited_s = 0.0
        self._answered = False

    def send(self) -> None:
        now = trio.current_time()
        self._world.at(now + self._stream.outbound.link.transit_s(), self._arrive)
        self._world.at(now + self._pause_s, self._send_again)

    def _send_again(self) -> None:
        if self._answered or not self._stream.connecting:
            return
        self._waited_s += self._pause_s
        self._pause_s *= 2
        if self._waited_s >= self._world.settings.connect_timeout_s:
            self._stream.failed("timed out")
        else:
            self.send()

    def _arrive(self) -> None:
        target, counters = self._target, self._world.counters
        if self._answered:
            return
        if self._stream.outbound.link.cut or target.off:
            counters["unanswered"] += 1
            return
        back = self._world.link(target.name, self._source.name)
        listener = target.listeners.get(self._port)
        if listener is None or not listener.hears(self._source):
            if back.cut:
                counters["unanswered"] += 1
                return
            counters["refused"] += 1
            self._answered = True
            self._world.at(trio.current_time() + back.latency(), partial(self._stream.failed, "refused"))
        elif len(listener.backlog) >= self._world.settings.backlog:
            counters["unanswered"] += 1
        else:
            self._answered = True
            self._connect(listener, back)

    def _connect(self, listener: MemoryListener, back: Link) -> None:
        client = self._stream
        name = f"{self._source.name}:{self._local_port}"
        server = MemoryStream(self._world, self._target, self._source, back, name)
        server.opened = True
        server.inbound, client.inbound = client.outbound, server.outbound
        client.outbound.target, server.outbound.target = server, client
        server.outbound.put(OPEN)
        listener.arrived(server)
