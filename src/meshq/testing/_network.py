"""A network in memory, between simulated hosts, that fails as it is told to.

One task delivers: everything under way is an entry ``(time, sequence, callback)`` of one heap.  A stream is two
pipes and two buffers, no task and no channel, so a message costs a push, a pop and one wake-up.  All that is
random is drawn from one generator, so the same seed gives the same network.

What fails, and what a process then sees:

- ``cut``, ``partition``: segments wait and arrive after ``heal``, late.  Nothing is lost; nothing is told.
- ``reset``: both ends get ``ConnectionBrokenError``; what was under way is lost.
- ``silence``: the connection is forgotten on the way.  Bytes vanish for good and nobody is told (half-open).
- ``kill_host``: the kernel closes the sockets of the process: its peers read an orderly end, or a reset if it
  had not read all that they sent.  Bytes that its process still held are lost.
- ``power_off``: silence.  Once the host runs again, whoever sends to it on an old connection gets a reset.
- ``pause_host``: the kernel takes bytes and connections; the process sees nothing and sends nothing.
- ``slow``, ``delay``: less bandwidth, more latency.
- ``drop``: segments are lost now and then, and arrive later, when they were sent again; datagrams do not arrive.
- ``exhaust_files``: ``accept`` raises ``OSError``.

Datagrams (``MemoryNetwork.datagrams``) go over the same links: a cut loses them, and so do death and loss of power.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable
from typing import Final

import trio

from meshq.abc import Network
from meshq.errors import BusyError, UsageError
from meshq.testing._datagrams import MemoryDatagrams
from meshq.testing._network_datagrams import NetworkPaths
from meshq.testing._network_host import NetworkHost
from meshq.testing._network_link import RST, Link, NetworkSettings
from meshq.testing._network_stream import MemoryStream

#: What is done to the network, each counted once per call that had something to hit.
FAULTS: Final = (
    "cut",
    "delay",
    "exhaust_files",
    "kill_host",
    "pause_host",
    "power_off",
    "reset",
    "silence",
    "slow",
)
#: What comes of it, or happens without being told to.
EFFECTS: Final = (
    "files_exhausted",
    "held",
    "refused",
    "short_read",
    "split",
    "timed_out",
    "unanswered",
    "vanished",
)
#: Loss by chance, which a test asks for: the fault and its effect.
LOSSES: Final = ("drop", "lost_segment")


class MemoryNetwork:
    """A network in memory between named hosts, which fails when it is told to.

    ``host(name)`` is the ``meshq.abc.Network`` of the process on that host; other hosts dial its listeners as
    ``"name:port"``.  ``datagrams.host(name)`` is the ``meshq.abc.Datagrams`` of that host, over the same links.
    ``run()`` delivers, and has to run in the background.  ``rng`` decides latencies and all else that
    is left to chance: the same seed and the same calls give the same network.
    """

    def __init__(self, rng: random.Random, settings: NetworkSettings | None = None) -> None:
        self.rng = rng
        self.settings: NetworkSettings = NetworkSettings() if settings is None else settings
        #: How often each fault and each effect has happened; none is missing.
        self.counters: dict[str, int] = dict.fromkeys((*FAULTS, *EFFECTS, *LOSSES), 0)
        self._hosts: dict[str, NetworkHost] = {}
        self._links: dict[tuple[str, str], Link] = {}
        #: The ways of datagrams, which count what they lose; and the datagrams themselves.
        self.paths: NetworkPaths = NetworkPaths(self)
        self.datagrams: MemoryDatagrams = MemoryDatagrams(self.paths)
        #: What is to happen: (time, a number that keeps the order of asking, what).
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = 0
        #: If set, events go there instead: a simulation's clock delivers them without a task.
        self.call_at: Callable[[float, Callable[[], object]], None] | None = None
        #: When the delivering task wakes by itself, and the scope in which it sleeps.
        self._next = math.inf
        self._scope: trio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"<MemoryNetwork hosts={len(self._hosts)} events={len(self._events)}>"

    async def run(self) -> None:
        """Deliver until cancelled; nothing arrives while no task runs this.

        Checkpoint: always.
        Cancellation: bytes on their way stay there, and go on with the next ``run``.
        Raises:
            BusyError: another task runs this already.
        """
        if self._scope is not None:
            raise BusyError("the network runs already")
        try:
            while True:
                self._deliver_due()
                self._next = self._events[0][0] if self._events else math.inf
                with trio.CancelScope(deadline=self._next) as self._scope:
                    await trio.sleep_forever()
        finally:
            self._scope = None

    # -- hosts ---------------------------------------------------------------------------------------------

    def host(self, name: str) -> Network:
        """Return the network as the process on host ``name`` sees it.

        A host is made when it is first asked for.  If its process is dead or its power off, this starts a new
        one: the restart after ``kill_host`` and ``power_off``.
        """
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = NetworkHost(self, name)
        elif host.network.dead:
            host.start()
        return host.network

    def kill_host(self, name: str) -> None:
        """Kill the process on a host; the kernel closes the process's connections."""
        host = self._running(name)
        self.counters["kill_host"] += 1
        host.kill()
        self.datagrams.end_process(name)

    def power_off(self, name: str) -> None:
        """Cut the power of a host: the host is silent, and its peers are told nothing."""
        host = self._running(name)
        self.counters["power_off"] += 1
        host.power_off()
        self.datagrams.end_process(name)

    def pause_host(self, name: str) -> None:
        """Stop the process on a host, as SIGSTOP does; silent if it is paused."""
        host = self._running(name)
        self.counters["pause_host"] += 1
        host.paused = True

    def resume_host(self, name: str) -> None:
        """Let a paused process go on; silent if it is not paused."""
        self._known(name).resume()

    def exhaust_files(self, name: str, exhausted: bool = True) -> None:
        """Let ``accept`` on a host fail for want of file descriptors, or no longer."""
        self.counters["exhaust_files"] += exhausted
        self._known(name).files_exhausted = exhausted

    # -- links ---------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from ``source`` to ``target``, until healed; the other way stays open."""
        self.counters["cut"] += 1
        self.link(source, target).cut = True

    def partition(self, *groups: Iterable[str]) -> None:
        """Cut all ways between hosts of different groups, in both directions."""
        sides = [list(group) for group in groups]
        for one in sides:
            for other in sides:
                if one is not other:
                    for source in one:
                        for target in other:
                            self.cut(source, target)

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """End the cuts, all of them or those from ``source`` and those to ``target``."""
        for (start, end), link in self._links.items():
            if link.cut and source in (None, start) and target in (None, end):
                link.heal()

    def cuts(self) -> list[tuple[str, str]]:
        """The directions that are cut, in the order in which they were first used."""
        return [pair for pair, link in self._links.items() if link.cut]

    def delay(self, source: str, target: str, latency_s_min: float, latency_s_max: float) -> None:
        """Let each segment from ``source`` to ``target`` take between these times from now on."""
        self.counters["delay"] += 1
        link = self.link(source, target)
        link.latency_s_min, link.latency_s_max = latency_s_min, latency_s_max

    def drop(self, source: str, target: str, probability: float) -> None:
        """Lose segments from ``source`` to ``target`` at this probability, from 0 to less than 1; 0 ends that.

        A lost segment of a stream is sent again, and arrives late; a lost datagram does not arrive.
        """
        if not 0 <= probability < 1:
            raise UsageError(f"probability={probability!r}: from 0 to less than 1; cut() lets nothing through")
        self.counters["drop"] += probability > 0
        self.link(source, target).loss = probability

    def restore(self) -> None:
        """End all cuts, delays and losses."""
        for link in self._links.values():
            link.restore()
            link.bytes_per_s = None
        self.heal()

    def shape(self, source: str, target: str, *, cut: bool, delay_s: float, loss: float) -> None:
        """Set all that is wrong with the way from ``source`` to ``target``; nothing else is from now on."""
        link = self.link(source, target)
        link.restore()
        if delay_s:
            self.delay(source, target, delay_s, delay_s)
        if loss:
            self.drop(source, target, loss)
        if cut and not link.cut:
            self.cut(source, target)
        elif link.cut and not cut:
            link.heal()

    def slow(self, source: str, target: str, bytes_per_s: float | None) -> None:
        """Bound the bytes that all connections from ``source`` to ``target`` move; None: no bound."""
        self.counters["slow"] += bytes_per_s is not None
        link = self.link(source, target)
        link.bytes_per_s, link.free_at = bytes_per_s, trio.current_time()

    # -- connections ---------------------------------------------------------------------------------------

    def reset(self, one: str, other: str) -> int:
        """Break the connections between two hosts and tell both ends; return the number of ends."""
        ends = self._ends(one, other)
        for stream in ends:
            assert stream.inbound is not None
            stream.inbound.lose()
            stream.inbound.put(RST)
        self.counters["reset"] += bool(ends)
        return len(ends)

    def silence(self, one: str, other: str) -> int:
        """Drop all later bytes of the connections between two hosts, and tell neither end; return the number of ends.

        Connections made later work.
        """
        ends = self._ends(one, other)
        for stream in ends:
            assert stream.inbound is not None
            stream.inbound.silent = stream.outbound.silent = True
        self.counters["silence"] += bool(ends)
        return len(ends)

    # -- what hosts, links and streams use ---------------------------------------------------------------------

    def at(self, time: float, callback: Callable[[], object]) -> None:
        """Call back at ``time``, after all that was asked for that time before."""
        if self.call_at is not None:
            self.call_at(time, callback)
            return
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, callback))
        if time < self._next:
            self._next = time
            if self._scope is not None:
                self._scope.deadline = time

    def find(self, name: str) -> NetworkHost | None:
        """Return the host of that name, or None."""
        return self._hosts.get(name)

    def link(self, source: str, target: str) -> Link:
        """Return the link from one host to another."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self)
        return link

    def _deliver_due(self) -> None:
        events, now = self._events, trio.current_time()
        while events and events[0][0] <= now:
            heapq.heappop(events)[2]()

    def _known(self, name: str) -> NetworkHost:
        host = self._hosts.get(name)
        if host is None:
            raise UsageError(f"host {name!r} is not known; known: {', '.join(self._hosts)}")
        return host

    def _running(self, name: str) -> NetworkHost:
        host = self._known(name)
        if host.network.dead:
            raise UsageError(f"nothing runs on host {name!r}")
        return host

    def _ends(self, one: str, other: str) -> list[MemoryStream]:
        """The ends, on either host, of connections between them."""
        here, there = self._known(one), self._known(other)
        ends = [stream for stream in here.streams if stream.peer_host is there]
        if here is not there:
            ends += [stream for stream in there.streams if stream.peer_host is here]
        return [stream for stream in ends if stream.inbound is not None]
