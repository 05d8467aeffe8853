"""A cluster of brokers in processes of their own, for tests of every framework, in real time."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Unpack

from meshq import blocking
from meshq.client import ClientOptions
from meshq.errors import BrokenError, CallTimeoutError
from meshq.testing.kit import _fault_plan as plan
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.kit._pairs import serves, store_of
from meshq.testing.kit._settled_plan import LinkView, NodeView, QueueView, moving

#: A process that is not active so many seconds after its start is killed.
START_S: Final = 60.0
#: At the end of a test a process has so many seconds to stop cleanly; the rest is killed.
STOP_S: Final = 5.0
#: Two looks that see the same are so many seconds apart.
QUIET_S: Final = 0.5
#: Seconds between two looks whether a node serves.
LOOK_S: Final = 0.05
#: So much of what a process has written stands in an error.
SHOWN_CHARACTERS_MAX: Final = 2000


class NodeProcess:
    """A node over all its lives, each a process."""

    def __init__(self, name: str, folder: Path, urls: dict[str, str], plan: ClusterPlan) -> None:
        self.name: str = name
        #: Where the process writes its log.
        self.log: Path = folder / f"{name}.log"
        settings = {
            "name": name,
            "directory": str(folder / store_of(name)),
            "urls": urls,
            "queues": list(plan.queues),
            "ha": plan.ha,
        }
        self._command = [sys.executable, "-m", "meshq.testing.processes._process_node", json.dumps(settings)]
        self._process: subprocess.Popen[str] | None = None
        self._paused = False

    @property
    def state(self) -> str:
        """``dead``, ``paused`` or ``active``."""
        if self._process is None or self._process.poll() is not None:
            return "dead"
        return "paused" if self._paused else "active"

    def start(self) -> None:
        """Begin a life; the process is not active yet."""
        self._paused = False
        with self.log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def started(self) -> None:
        """Wait until the process is active.

        Raises:
            BrokenError: it has ended before, or was killed because it took too long.
        """
        assert self._process is not None
        watch = threading.Timer(START_S, self._process.kill)
        watch.start()
        try:
            self._answer()
        finally:
            watch.cancel()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            told = self.log.read_text(encoding="utf-8")[-SHOWN_CHARACTERS_MAX:]
            ended = EOFError(f"exit status {self._process.returncode}")
            raise BrokenError(f"the process of {self.name} has ended:\n{told}") from ended
        answer: dict[str, Any] = json.loads(line)
        return answer

    def view(self) -> NodeView:
        """Look at the node."""
        if self.state != "active":
            return NodeView(self.name, self.state, store_of(self.name))
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            seen = self._answer()
        except (BrokenError, BrokenPipeError):
            # It has ended a moment ago.
            return NodeView(self.name, "dead", store_of(self.name))
        return NodeView(
            self.name,
            seen["state"],
            seen["store"],
            seen["stopped"],
            {name: QueueView(**queue) for name, queue in seen["queues"].items()},
            {name: LinkView(**link) for name, link in seen["links"].items()},
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)
        self._paused = number == signal.SIGSTOP

    def kill(self) -> None:
        """End the process by SIGKILL, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def stop(self) -> None:
        """Let the process stop cleanly; kill it if it does not in time."""
        if self._process is None:
            return
        if self._paused:
            self.send(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._close()

    def _close(self) -> None:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None


class ProcessCluster:
    """A cluster of real processes, in real time; made by the fixture ``meshq_process_cluster``.

    The nodes, ``n0``, ``n1`` and so on, listen at free ports of this machine, which they keep over restarts.  A wrong
    name, or a node in a wrong state, is a ``UsageError`` that names the nodes.
    """

    def __init__(self, folder: Path, settings: ClusterPlan) -> None:
        folder.mkdir()
        self._primaries = settings.primaries
        self._urls = dict(zip(settings.names, _free_urls(len(settings.names)), strict=True))
        self._nodes = {name: NodeProcess(name, folder, self._urls, settings) for name in settings.names}

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
            lines = moving(before, now, lambda one, other: False)
            if not lines:
                return
            if time.monotonic() >= end:
                text = f"still moving after {timeout:g} s: {'; '.join(lines)}"
                raise CallTimeoutError(text, outcome="unknown") from TimeoutError(f"waited {timeout:g} s")
            before = now

    # -- parts of these

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


def _free_urls(count: int) -> list[str]:
    """URLs with ports that nothing listens at, all of them different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"tcp://127.0.0.1:{one.getsockname()[1]}" for one in sockets]
