"""A process that can be killed: the outside of one life of a broker, which is taken away from one call to the next.

A task that is cancelled still tidies up, and a broker that tidies up writes, syncs and says good-bye.  A process that
is killed does none of that.  So the outside goes first (disk, sockets, links within the program), and only then are
the tasks cancelled that have nobody to speak to any more.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import attrs
import trio

from meshq import Broker, abc
from meshq.errors import ConnectionBrokenError
from meshq.testing import SimDisk
from meshq.wire import DirectLink

T = TypeVar("T")
#: How a life ends: in peace, by SIGKILL, or with the power of its machine.
End = Literal["stopped", "killed", "power"]
ENDS: tuple[End, ...] = ("stopped", "killed", "power")
#: Seconds that a call in a thread takes.
CALL_S = 0.001


class SlowThreads(abc.Threads):
    """Calls are made where they stand, and each takes its time: who is told of a sync before it was made is seen."""

    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        """Make a call after a moment of trio's clock."""
        await trio.sleep(CALL_S)
        return function(*arguments)

    def idle(self) -> bool:
        """Every call goes through a thread."""
        return False


class Unlucky(random.Random):
    """The luck of a disk that loses everything that was not synced."""

    def random(self) -> float:
        """Always the worst."""
        return 0.0


class CutDisk(abc.Disk):
    """A disk for one process; after ``cut`` its calls do nothing but fail, and its files and locks are gone."""

    def __init__(self, disk: abc.Disk) -> None:
        self._disk = disk
        self._alive = True
        # A call that is under way when the process dies is finished by the kernel, before its file is closed.
        self._turn = threading.RLock()
        self.files: dict[abc.File, None] = {}

    def cut(self) -> None:
        """From here on nothing is written."""
        with self._turn:
            self._alive = False
            for file in list(self.files):
                file.close()
            self.files.clear()

    def call(self, function: Callable[..., T], *arguments: Any, **settings: Any) -> T:
        """Make a call for the process, if there still is one."""
        with self._turn:
            self._check()
            result = function(*arguments, **settings)
            self._check()
            return result

    def _check(self) -> None:
        if not self._alive:
            raise OSError(errno.EIO, "the process of this disk was killed")

    def open(self, path: str, *, create: bool = False) -> abc.File:
        file = self.call(self._disk.open, path, create=create)
        self.files[file] = None
        return CutFile(self, file)

    def replace(self, old: str, new: str) -> None:
        self.call(self._disk.replace, old, new)

    def move_directory(self, old: str, new: str) -> None:
        self.call(self._disk.move_directory, old, new)

    def remove(self, path: str) -> None:
        self.call(self._disk.remove, path)

    def names(self, directory: str) -> list[str]:
        return self.call(self._disk.names, directory)

    def make_directory(self, path: str) -> None:
        self.call(self._disk.make_directory, path)

    def mode(self, directory: str) -> int:
        return self.call(self._disk.mode, directory)

    def sync_directory(self, path: str) -> None:
        self.call(self._disk.sync_directory, path)


class CutFile(abc.File):
    """An open file of such a disk."""

    def __init__(self, disk: CutDisk, file: abc.File) -> None:
        self._disk = disk
        self._file = file

    def write_at(self, offset: int, buffers: Sequence[abc.Buffer]) -> None:
        self._disk.call(self._file.write_at, offset, buffers)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._disk.call(self._file.read_at, offset, size)

    def size(self) -> int:
        return self._disk.call(self._file.size)

    def truncate(self, size: int) -> None:
        self._disk.call(self._file.truncate, size)

    def sync(self) -> float:
        return self._disk.call(self._file.sync)

    def lock(self) -> bool:
        return self._disk.call(self._file.lock)

    def close(self) -> None:
        self._disk.files.pop(self._file, None)
        self._file.close()


class CutNetwork(abc.Network):
    """A network for one process; ``cut`` ends its streams and listeners, and there are no new ones."""

    def __init__(self, network: abc.Network) -> None:
        self._network = network
        self._alive = True
        self._open: list[abc.Stream | abc.Listener] = []

    def cut(self) -> None:
        """From here on nothing is said and nothing heard."""
        self._alive = False
        for one in self._open:
            one.close()
        self._open.clear()

    def keep(self, one: abc.Stream | abc.Listener) -> None:
        """Something that ends with the process."""
        if self._alive:
            self._open.append(one)
        else:
            one.close()

    async def connect(self, host: str, port: int) -> abc.Stream:
        if not self._alive:
            await trio.lowlevel.checkpoint()
            raise ConnectionBrokenError("the process of this network was killed", outcome="not_done")
        stream = await self._network.connect(host, port)
        self.keep(stream)
        return stream

    async def listen(self, host: str, port: int) -> abc.Listener:
        listener = await self._network.listen(host, port)
        self.keep(listener)
        return CutListener(self, listener)


class CutListener(abc.Listener):
    """A listener of such a network."""

    def __init__(self, network: CutNetwork, listener: abc.Listener) -> None:
        self._network = network
        self._listener = listener

    async def accept(self) -> abc.Stream:
        stream = await self._listener.accept()
        self._network.keep(stream)
        return stream

    @property
    def port(self) -> int:
        return self._listener.port

    def close(self) -> None:
        self._listener.close()


class CutPlaces(dict[str, Any]):
    """What is in a program besides one node of it: its own door for the others, and theirs as this node sees them."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__()
        self._shared = shared
        self._alive = True
        self._opened: list[DirectLink] = []

    def cut(self) -> None:
        """From here on the node is not there, and has no link to anybody."""
        self._alive = False
        for name, door in self.items():
            if self._shared.get(name) is door:
                del self._shared[name]
            door._closed = True
            self._opened += [server._link for server in door.connections]
        for link in self._opened:
            # What is in line goes nowhere.
            link._out.clear()
            link.close()
        self._opened.clear()

    def __setitem__(self, name: str, door: Any) -> None:
        super().__setitem__(name, door)
        if self._alive:
            self._shared[name] = door

    def __delitem__(self, name: str) -> None:
        door = self.pop(name)
        if self._shared.get(name) is door:
            del self._shared[name]

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:
            return self[name]
        there = self._shared.get(name) if self._alive else None
        return default if there is None else _Way(there, self._opened)


@attrs.frozen
class _Way:
    """Somebody else's door, as a node sees it whose links are to be cut."""

    _door: Any
    _opened: list[DirectLink]

    def connect_local(self, label: str) -> DirectLink:
        link: DirectLink = self._door.connect_local(label)
        self._opened.append(link)
        return link


@attrs.define(eq=False)
class Process:
    """One life of a broker on a machine.  ``env`` is what it has of the outside."""

    machine: abc.Env
    env: abc.Env = attrs.field(init=False)
    #: It was killed, or its machine lost its power.
    dead: bool = False
    _disk: CutDisk = attrs.field(init=False)
    _network: CutNetwork = attrs.field(init=False)
    _places: CutPlaces = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _ended: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._disk = CutDisk(self.machine.disk)
        self._network = CutNetwork(self.machine.network)
        self._places = CutPlaces(self.machine.local)
        self.env = attrs.evolve(self.machine, disk=self._disk, network=self._network, local=self._places)

    async def live(self, broker: Broker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run a broker that was given ``env``, until it ends or is killed."""
        try:
            with self._scope:
                await broker.run(task_status=task_status)
        except BaseException:
            # Whatever a dead process would have said of its end nobody hears.
            if not self.dead:
                raise
        finally:
            self._ended.set()

    def kill(self) -> None:
        """SIGKILL: it does nothing more; what it wrote is there for whoever starts next."""
        if not self.dead:
            self.dead = True
            self._disk.cut()
            self._network.cut()
            self._places.cut()
            self._scope.cancel()

    def lose_power(self, luck: random.Random | None = None) -> None:
        """The machine loses its power: what was not synced is gone, or kept as ``luck`` has it."""
        disk = self.machine.disk
        assert isinstance(disk, SimDisk), "only a simulated machine can lose its power"
        self.kill()
        disk.power_loss(Unlucky() if luck is None else luck)

    async def end(self, end: End) -> None:
        """Kill it, or see to it that a broker that was stopped has ended."""
        if end == "killed":
            self.kill()
        elif end == "power":
            self.lose_power()
        await self.ended()

    async def ended(self) -> None:
        """Nothing of it runs any more."""
        await self._ended.wait()
