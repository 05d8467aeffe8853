"""A cluster of brokers in processes of their own, for tests of every framework, in real time."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from meshq import blocking
from meshq.client import ClientOptions
from meshq.errors import BrokenError, CallTimeoutError, UsageError
from meshq.testing.kit import _fault_plan as plan
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.kit._fault_plan import TEST_HOST
from meshq.testing.kit._link_faults import FaultyLinks, LinkFaults
from meshq.testing.kit._pairs import serves, store_of
from meshq.testing.kit._settled_plan import LinkView, NodeView, QueueView, moving
from meshq.testing.processes._child_process import START_S, ChildProcess
from meshq.testing.processes._link_proxy import LinkProxy
from meshq.testing.processes._process_quorum import WITNESSES

#: What a simulated cluster has beside, for which real processes have nothing.
SIMULATED: Final = (
    *("broker", "clock", "disk", "healed", "history", "power_loss", "report", "rng", "seed", "spawn", "stop"),
    *("wait_for", "wall_clock"),
)
#: Calls of the fixture, not of tests.
OF_THE_FIXTURE: Final = ("close", "form", "host")
#: Two looks that see the same are so many seconds apart.
QUIET_S: Final = 0.5
#: Seconds between two looks whether a node serves.
LOOK_S: Final = 0.05


class NodeProcess(ChildProcess):
    """A node over all its lives, each a process."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        name: str = settings["name"]
        super().__init__(name, folder / f"{name}.log", "meshq.testing.processes._process_node", settings)
        self._paused = False

    @property
    def state(self) -> str:
        """``dead``, ``paused`` or ``active``."""
        if not self.running:
            return "dead"
        return "paused" if self._paused else "active"

    def start(self) -> None:
        """Begin a life; the process is not active yet."""
        self._paused = False
        super().start()

    def view(self) -> NodeView:
        """Look at the node."""
        if self.state != "active":
            return NodeView(self.name, self.state, store_of(self.name))
        try:
            seen = self.ask()
        except BrokenError:
            # It has ended a moment ago.
            return NodeView(self.name, "dead", store_of(self.name))
        return NodeView(
            self.name,
            seen["state"],
            seen["store"],
            seen["stopped"],
            {name: QueueView(**queue) for name, queue in seen["queues"].items()},
            {name: LinkView(**link) for name, link in seen["links"].items()},
            seen["copy"],
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)
        self._paused = number == signal.SIGSTOP

    def stop(self) -> None:
        """Let the process stop cleanly; kill it if it does not in time."""
        if self._paused and self.running:
            self.send(signal.SIGCONT)
        super().stop()


class SimulatedOnlyError(UsageError, AttributeError):
    """A cluster of real processes does not have a call of a simulated one: a program may ask with ``hasattr``."""


class ProcessCluster(LinkFaults):
    """A cluster of real processes, in real time; made by the fixture ``meshq_process_cluster``.

    The nodes, ``n0``, ``n1`` and so on, listen at free ports of this machine, which they keep over restarts.  A wrong
    name, or a node in a wrong state, is a ``UsageError`` that names the nodes.

    With ``links=True`` a proxy in a thread of the test carries all that nodes and clients say to each other, so that
    links can be cut and slow; ``test`` is the test itself in ``cut``, ``partition``, ``delay`` and ``drop``.  With
    ``ha="replication"`` three witnesses, which are always there, say which node of a pair serves.
    """

    def __init__(self, folder: Path, settings: ClusterPlan, *, links: bool = False) -> None:
        plan.check_flag("links", links)
        folder.mkdir()
        self._primaries = settings.primaries
        names = settings.names
        # All at once, so that they differ.
        found = _free_urls(len(names) + WITNESSES)
        real, witnesses = found[:-WITNESSES], []
        self._quorum: ChildProcess | None = None
        if settings.ha == "replication":
            witnesses = found[-WITNESSES:]
            asked = {"directory": str(folder / "quorum"), "urls": witnesses}
            module = "meshq.testing.processes._process_quorum"
            self._quorum = ChildProcess("quorum", folder / "quorum.log", module, asked)
        acceptors = dict(zip(names, real, strict=True))
        self._urls = acceptors
        self._proxy: LinkProxy | None = None
        if links:
            self._proxy = LinkProxy({name: _port(url) for name, url in acceptors.items()}, _directions(names))
            self._proxy.start()
            self._urls = {name: _url(self._proxy.ports[TEST_HOST, name]) for name in names}
        self._nodes = {
            name: NodeProcess(
                folder,
                {
                    "name": name,
                    "directory": str(folder / (name if settings.ha == "replication" else store_of(name))),
                    "urls": self._urls,
                    "acceptor": acceptors[name],
                    "routes": self._routes(name),
                    "queues": list(settings.queues),
                    "ha": settings.ha,
                    "witnesses": witnesses,
                },
            )
            for name in names
        }

    def _routes(self, name: str) -> dict[int, int]:
        """Return the ports that a node dials, by the ports that all nodes know."""
        if self._proxy is None:
            return {}
        others = [other for other in self._urls if other != name]
        return {_port(self._urls[other]): self._proxy.ports[name, other] for other in others}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise an error for the name of a call that only a simulated cluster has; ``hasattr`` is False."""
            if name in SIMULATED:
                calls = ", ".join(call for call in dir(type(self)) if call[0] != "_" and call not in OF_THE_FIXTURE)
                raise SimulatedOnlyError(
                    f"a cluster of real processes has no {name!r}, as meshq_cluster has; it has: {calls}"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<ProcessCluster {', '.join(f'{name}: {state}' for name, state in self._states().items())}>"

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, dead ones included."""
        return list(self._nodes)

    @property
    def alive(self) -> list[str]:
        """The names of the nodes whose processes run."""
        return [name for name, state in self._states().items() if state == "active"]

    @property
    def urls(self) -> list[str]:
        """The URLs of all nodes."""
        return list(self._urls.values())

    def url(self, n: str | None = None) -> str:
        """Return the URL of a node, or one of all nodes.

        Raises:
            UsageError: no node has this name.
        """
        if n is None:
            return f"({','.join(self.urls)})"
        return self._urls[self._known(n).name]

    def client(self, n: str | None = None, **settings: Unpack[ClientOptions]) -> blocking.Client:
        """Create a client of a node, or of any node that serves; a context manager.

        Raises:
            UsageError: no node has this name.
        """
        if n is not None:
            return blocking.connect(self.url(n), **settings)
        alive = self.alive
        ordered = alive + [name for name in self.nodes if name not in alive]
        return blocking.connect([self._urls[name] for name in ordered], **settings)

    # -- life

    def form(self) -> None:
        """Start all processes, and wait until each is linked to each other one.

        Raises:
            BrokenError: a process has ended.
            CallTimeoutError: the nodes are not linked in time.
        """
        if self._quorum is not None:
            self._quorum.start()
            self._quorum.started()
        for names in (self._primaries, self.nodes[len(self._primaries) :]):
            for name in names:
                self._nodes[name].start()
            for name in names:
                self._nodes[name].started()
            for name in names:
                self._serving(name)
        self.settled()

    def close(self) -> None:
        """Stop all processes; one that does not stop in time is killed."""
        with ExitStack() as stack:
            if self._proxy is not None:
                stack.callback(self._proxy.close)
            if self._quorum is not None:
                stack.callback(self._quorum.stop)
            for node in self._nodes.values():
                stack.callback(node.stop)

    # -- faults

    def kill(self, n: str) -> None:
        """Kill a node by SIGKILL."""
        self._in_state(n, "active", "paused").kill()

    def pause(self, n: str) -> None:
        """Stop a node by SIGSTOP, until ``resume``."""
        self._in_state(n, "active").send(signal.SIGSTOP)

    def resume(self, n: str) -> None:
        """Let a paused node go on."""
        self._in_state(n, "paused").send(signal.SIGCONT)

    def restart(self, n: str) -> None:
        """Start a dead node again on the same disk, or kill a node and start it; returns when the node is active.

        A node of a pair whose other node serves waits, and is not active then.

        Raises:
            UsageError: no node has this name.
            BrokenError: the process has ended; the error has the end of its log.
        """
        node = self._known(n)
        node.kill()
        node.start()
        node.started()
        self._serving(n)

    def settled(self, timeout: float = 60.0) -> None:
        """Wait until nothing moves any more: every link that can be is there, and no message comes or goes.

        Raises:
            CallTimeoutError: the time is up; the error lists what still moves.
        """
        plan.check_seconds("timeout", timeout)
        end = time.monotonic() + timeout
        before = self._views()
        while True:
            time.sleep(QUIET_S)
            now = self._views()
            lines = moving(before, now, self._apart)
            if not lines:
                return
            if time.monotonic() >= end:
                text = f"still moving after {timeout:g} s: {'; '.join(lines)}"
                raise CallTimeoutError(text, outcome="unknown") from TimeoutError(f"waited {timeout:g} s")
            before = now

    # -- parts of these

    def _links(self) -> FaultyLinks:
        if self._proxy is None:
            raise UsageError("links fail where a proxy carries them: meshq_process_cluster(links=True)")
        return self._proxy

    def _note(self, what: str, text: str) -> None:
        """Nothing is written down: there is no report of real processes."""

    def _places(self) -> tuple[list[str], list[str]]:
        return self.nodes, [*self.nodes, TEST_HOST]

    def host(self, place: str) -> str:
        """Return the name of a node, or of the test itself.  Raises: UsageError: there is no such place."""
        plan.check_known(place, self._places()[1])
        return place

    def _apart(self, a: str, b: str) -> bool:
        cuts = () if self._proxy is None else self._proxy.cuts()
        return (a, b) in cuts or (b, a) in cuts

    def _serving(self, name: str) -> None:
        """Wait until a node serves, or waits because the other node of its pair serves."""
        end = time.monotonic() + START_S
        while not serves(name, {view.name: view.state for view in self._views() if view.store == store_of(name)}):
            if time.monotonic() >= end:
                raise CallTimeoutError(f"{name} does not serve after {START_S:g} s") from TimeoutError(name)
            time.sleep(LOOK_S)

    def _views(self) -> list[NodeView]:
        return [node.view() for node in self._nodes.values()]

    def _states(self) -> dict[str, str]:
        return {name: node.state for name, node in self._nodes.items()}

    def _known(self, name: str) -> NodeProcess:
        plan.check_known(name, self.nodes)
        return self._nodes[name]

    def _in_state(self, name: str, *allowed: str) -> NodeProcess:
        node = self._known(name)
        plan.check_state(name, node.state, allowed, self._states())
        return node


def _directions(names: Sequence[str]) -> list[plan.Direction]:
    """List the pairs of places that dial each other: each node each other one, and the test all of them."""
    return [(source, target) for source in [*names, TEST_HOST] for target in names if source != target]


def _url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _free_urls(count: int) -> list[str]:
    """URLs with ports that nothing listens at, all of them different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [_url(one.getsockname()[1]) for one in sockets]
