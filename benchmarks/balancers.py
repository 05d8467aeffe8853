"""Measurements of a balancer: clients that a front sends on to four targets, and a storm of them that come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.processes import START_SECONDS, BenchmarkError, Process, python
from benchmarks.workload import Workload

MODULE = "benchmarks.balancer_nodes"
TARGETS = ("north", "east", "south", "west")
#: Of one order, a little longer than the patience of a process.
LIMIT_SECONDS = 330.0

Figures = dict[str, float]


class Targets:
    """The processes of the targets, each with a port that it keeps."""

    def __init__(self, stack: ExitStack, workload: Workload) -> None:
        self._stack = stack
        self._workload = workload
        self._ports = dict.fromkeys(TARGETS, 0)
        self._processes: dict[str, Process] = {}

    def start(self, *, fresh: bool = True) -> list[str]:
        """Start all of them; returns their URLs, in order."""
        directory = Path(self._workload.directory)
        for name, port in self._ports.items():
            folder = directory / f"process-{name}"
            folder.mkdir(exist_ok=True)
            process = self._stack.enter_context(python(MODULE, "target", self._workload, directory=folder))
            process.hear(START_SECONDS)
            process.tell(name=name, port=port, fresh=fresh)
            self._processes[name] = process
        urls = [str(self._processes[name].hear(START_SECONDS)["url"]) for name in TARGETS]
        self._ports = {name: int(url.rpartition(":")[2]) for name, url in zip(TARGETS, urls, strict=True)}
        return urls

    def kill(self) -> None:
        """SIGKILL of all at once."""
        for process in self._processes.values():
            process.kill()

    def stop(self) -> int:
        """Let them end; returns how many messages they have taken in."""
        for process in self._processes.values():
            process.tell()
        return sum(int(process.result(LIMIT_SECONDS)["added"]) for process in self._processes.values())


@contextmanager
def fronted(workload: Workload, role: str) -> Iterator[tuple[Targets, Process, Process]]:
    """The targets, their front, and a process of clients that is told where the front is."""
    directory = Path(workload.directory)
    with ExitStack() as stack:
        targets = Targets(stack, workload)
        urls = targets.start()
        front = stack.enter_context(python(MODULE, "front", workload, directory=directory))
        front.hear(START_SECONDS)
        front.tell(targets=urls)
        url = front.hear(START_SECONDS)["url"]
        clients = stack.enter_context(python(MODULE, role, workload, directory=directory))
        clients.hear(START_SECONDS)
        clients.tell(url=url)
        yield targets, front, clients


def redirects(workload: Workload) -> Figures:
    """Clients connect at the front and are sent on; each is done when its first message is confirmed."""
    with fronted(workload, "senders") as (targets, front, clients):
        got = clients.result(LIMIT_SECONDS)
        front.tell()
        redirected, added = int(front.result(LIMIT_SECONDS)["redirected"]), targets.stop()
    if min(redirected, added) < workload.count:
        raise BenchmarkError(f"{redirected} of {workload.count} clients were sent on, and {added} messages came")
    return {
        "rate": workload.count / got["seconds"],
        "messages": workload.count,
        **{name: got[name] for name in ("seconds", "p50_ms", "p99_ms")},
    }


def share(places: Mapping[str, int], count: int) -> float:
    """The most clients that a target has, in shares: 1 is a quarter of them."""
    if sum(places.values()) != count or not set(places) <= set(TARGETS):
        raise BenchmarkError(f"{count} clients are at {dict(places)}")
    return max(places.values()) * len(TARGETS) / count


def storm(workload: Workload) -> Figures:
    """Clients are spread over the targets by ``LeastConnections``; all targets die at once and come back."""
    with fronted(workload, "holders") as (targets, front, clients):
        before: Sequence[Mapping[str, int]] = clients.hear(LIMIT_SECONDS)["places"]
        clients.tell()
        targets.kill()
        targets.start(fresh=False)
        got = clients.result(LIMIT_SECONDS)
        front.tell()
        front.result(LIMIT_SECONDS)
        targets.stop()
    return {
        "first_share": share(before[0], workload.count),
        "share": share(got["places"][1], workload.count),
        "messages": workload.count,
        "seconds": got["seconds"],
    }
