"""The kit of the attacks: a real broker process, a sampler of its memory and descriptors, and a report of bounds.

An attack is a coroutine that takes a folder and returns a ``Report``.
Its module runs it in ``main``, so that ``python -m tests.attacks.NAME`` prints the bounds that hold, and a test beside
it runs the same coroutine.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from meshq.settings import TLS
from qa.results import RESULTS, about_here
from tests.env.authorities import Authority

ROOT = Path(__file__).resolve().parents[2]
#: Seconds that a broker may take to start and to stop.
PATIENCE_S = 30.0
#: Seconds between two samples of a broker's memory and descriptors.
SAMPLE_S = 0.02
#: Seconds that one attack may take.
ATTACK_S = 240.0


@attrs.frozen
class Usage:
    """Memory and open descriptors of a process at one moment; both 0 if the process is gone."""

    rss_bytes: int
    descriptors: int


def usage_of(pid: int) -> Usage:
    """The memory and the open descriptors of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return Usage(pages * resource.getpagesize(), len(os.listdir(f"/proc/{pid}/fd")))
    except (OSError, IndexError):
        return Usage(0, 0)


class Sampler:
    """The largest memory and the most descriptors of a broker between the beginning and the end of a block."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        #: What the broker had when the block began.
        self.first = Usage(0, 0)
        self.rss_bytes = 0
        self.descriptors = 0

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        now = self._server.usage()
        self.rss_bytes = max(self.rss_bytes, now.rss_bytes)
        self.descriptors = max(self.descriptors, now.descriptors)

    def __enter__(self) -> Sampler:
        self.first = self._server.usage()
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()


class Server:
    """A broker on the loopback device in a process of its own (``meshq run``), with a limit of descriptors.

    ``descriptors``: RLIMIT_NOFILE of the process.  ``settings``: more lines of the configuration file; keys of the top
    first, tables after.  ``users``: names and passwords.  ``tls``: the acceptor speaks TLS, and ``client_tls`` is what
    a client needs for it.  ``stored``: the broker has a store, in ``data``.  The port stays the same over restarts.
    """

    def __init__(
        self,
        folder: Path,
        *,
        descriptors: int = 1_024,
        settings: str = "",
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        stored: bool = True,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "broker.log"
        self.client_tls: TLS | None = None
        self.descriptors = descriptors
        self.url = ""
        self._settings = settings
        self._users = dict(users or {})
        self._stored = stored
        self._certificate = ""
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        if tls:
            authority = Authority("attacked")
            self._certificate = authority.issue(folder / "broker.pem", "127.0.0.1", "localhost")
            self.client_tls = TLS(authorities=authority.write(folder / "authority.pem"))

    @property
    def pid(self) -> int:
        """The process; 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def port(self) -> int:
        """The port on which the broker listens."""
        return self._port

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def usage(self) -> Usage:
        """What the process has now."""
        return usage_of(self.pid) if self.running else Usage(0, 0)

    def said(self) -> str:
        """Everything that the broker has logged, over all its lives."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def start(self) -> None:
        """Start the broker and wait until it serves."""
        assert not self.running, "the broker runs already"
        file = self.folder / "broker.toml"
        file.write_text(self._file(), encoding="utf-8")
        command = shlex.join([sys.executable, "-W", "error", "-m", "meshq", "run", str(file)])
        before = len(self.said())
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", f"ulimit -n {self.descriptors} && exec {command}"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
        until = time.monotonic() + PATIENCE_S
        while " at t" not in self.said()[before:].rpartition("serving ")[2].partition("\n")[0]:
            if not self.running or time.monotonic() > until:
                self.kill()
                raise AssertionError(f"the broker does not serve: {self.said()[before:][-2_000:]}")
            time.sleep(0.02)
        self.url = self.said()[before:].rpartition("serving ")[2].partition("\n")[0].split()[-1]
        self._port = int(self.url.rpartition(":")[2])

    def _file(self) -> str:
        scheme = "tls" if self._certificate else "tcp"
        data = f'data_dir = "{self.data}"' if self._stored else ""
        tls = f'tls = {{ certificate = "{self._certificate}" }}' if self._certificate else ""
        users = "\n".join(f'{user} = "{password}"' for user, password in self._users.items())
        return "\n".join(
            [
                'name = "attacked"',
                data,
                self._settings,
                "[[acceptors]]",
                f'url = "{scheme}://127.0.0.1:{self._port}"',
                tls,
                f"[security.users]\n{users}" if users else "",
                "",
            ]
        )

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End the process in peace (SIGTERM); its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None, "the broker was started"
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.kill()


@attrs.frozen
class Bound:
    """One figure of an attack and its bound."""

    what: str
    found: float
    bound: float
    holds: bool
    sign: str


@attrs.define
class Report:
    """The figures of one attack with their bounds."""

    name: str
    bounds: list[Bound] = attrs.field(factory=list)

    def at_most(self, what: str, found: float, bound: float) -> None:
        """A figure that may not be larger."""
        self.bounds.append(Bound(what, found, bound, found <= bound, "<="))

    def at_least(self, what: str, found: float, bound: float) -> None:
        """A figure that may not be smaller."""
        self.bounds.append(Bound(what, found, bound, found >= bound, ">="))

    def exactly(self, what: str, found: float, bound: float) -> None:
        """A figure that is known."""
        self.bounds.append(Bound(what, found, bound, found == bound, "=="))

    def text(self) -> str:
        """A line for each figure."""
        lines = [f"{self.name}: {'every bound holds' if self.holds else 'A BOUND IS BROKEN'}"]
        for bound in self.bounds:
            verdict = "holds" if bound.holds else "BROKEN"
            lines.append(f"  {verdict:6} {bound.what}: {bound.found:,.12g} {bound.sign} {bound.bound:,.12g}")
        return "\n".join(lines)

    @property
    def holds(self) -> bool:
        """Whether every bound holds."""
        return bool(self.bounds) and all(bound.holds for bound in self.bounds)

    def record(self, kind: str, name: str, arguments: Sequence[str] = ()) -> None:
        """Write the figures and their bounds to a file below docs/results.

        ``kind``: the module of the attack.  ``arguments``: those of its command.
        """
        result = {
            "kind": kind,
            "format": 1,
            "command": " ".join([f"python -m tests.attacks.{kind}", *arguments]),
            **about_here(),
            kind: {bound.what: bound.found for bound in self.bounds},
            "bounds": {bound.what: f"{bound.sign} {bound.bound:g}" for bound in self.bounds},
        }
        Path(ROOT, RESULTS, f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def check(self) -> None:
        """Fail, with all figures, unless every bound holds."""
        assert self.holds, self.text()


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Sampler]:
    """A broker that serves within the block, sampled."""
    await trio.to_thread.run_sync(server.start)
    try:
        with Sampler(server) as sampler:
            yield sampler
    finally:
        if server.running:
            server.kill()


Attack = Callable[[Path], Awaitable[Report]]


async def within_time(attack: Attack, folder: Path) -> Report:
    """The report of an attack, which fails if it takes too long."""
    with trio.fail_after(ATTACK_S):
        return await attack(folder)


def main(attack: Attack, *, kind: str = "") -> None:
    """Run an attack as a command: print its report, and exit with 1 if a bound is broken.

    ``kind``: the attack's module, if its figures are written to the file of that name below docs/results.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = trio.run(partial(within_time, attack, Path(folder)))
    print(report.text())
    if kind and report.holds:
        report.record(kind, kind)
    sys.exit(0 if report.holds else 1)
