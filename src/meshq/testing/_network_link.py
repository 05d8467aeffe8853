"""The wire of the memory network: links between hosts, and one direction of one connection.

A link loses nothing of a connection that lives: TCP sends again until it gets through.  So what meets a cut waits
for the end of the cut and arrives late, and the sender sees only that nothing comes back.  Bytes vanish for good
when the connection itself is gone: its far end lost power, or something between forgot it.

A pipe carries whatever its sender gave, in order: bytes, the number of bytes that the other side has read since
it last said so (the receiver's window), and the marks below.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import attrs
import trio

from meshq.limits import KIB


class Mark:
    """A segment without bytes, with a name to be read in failures."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


#: The connection stands (the answer to the caller's first segment).
OPEN: Final = Mark("OPEN")
#: The sender sends no more.
FIN: Final = Mark("FIN")
#: The connection is void.
RST: Final = Mark("RST")

Item = bytes | int | Mark


@attrs.frozen(kw_only=True)
class NetworkSettings:
    """The behaviour of a memory network while no fault is asked for: latencies, buffers, timeouts."""

    #: Each segment takes between these, drawn evenly.
    latency_s_min: float = 0.0001
    latency_s_max: float = 0.002
    #: Bytes of one direction that left their sender's process and were not read yet.
    buffer_bytes: int = 256 * KIB
    #: How often what is sent at once travels in two segments.
    split_chance: float = 0.1
    #: How often a read gives less than there is.
    short_read_chance: float = 0.1
    #: After a cut is healed the sender notices within this: its timer was backing off.
    retransmit_s_max: float = 1.0
    #: A segment that is lost is sent again after this; each further time the pause doubles.  Linux: 200 ms.
    retransmit_s_min: float = 0.2
    #: First pause before a connection attempt that nobody answered is sent again; each further one doubles.
    connect_retry_s: float = 1.0
    #: An attempt is given up after this; Linux needs 127 s for its six tries.
    connect_timeout_s: float = 127.0
    #: A connection is given up when the peer has confirmed nothing for this long; Linux: 15 tries, 924 s.
    send_timeout_s: float = 924.0
    #: Connections that wait to be accepted.
    backlog: int = 128
    #: How often a datagram is lost, and how often one comes twice.
    datagram_lost_chance: float = 0.02
    datagram_doubled_chance: float = 0.02


class End(Protocol):
    """An end of a connection, as its pipes see it."""

    def arrived(self, item: Item) -> None:
        """A segment is here."""

    def failed(self, reason: str) -> None:
        """The connection is void."""


class NetworkContext(Protocol):
    """The part of a network that its links and streams use."""

    rng: random.Random
    settings: NetworkSettings
    #: How often each thing has happened.
    counters: dict[str, int]

    def at(self, time: float, callback: Callable[[], object]) -> None:
        """Call back at ``time``, after all that was asked for that time before."""


class Link:
    """A direction between two hosts, shared by all their connections."""

    __slots__ = (
        "bytes_per_s",
        "cut",
        "fabric",
        "free_at",
        "latency_s_max",
        "latency_s_min",
        "loss",
        "stalled",
    )

    def __init__(self, fabric: NetworkContext) -> None:
        self.fabric: NetworkContext = fabric
        self.latency_s_min: float = fabric.settings.latency_s_min
        self.latency_s_max: float = fabric.settings.latency_s_max
        #: None: as fast as you like.
        self.bytes_per_s: float | None = None
        #: When a slow link has sent what it was given.
        self.free_at: float = 0.0
        #: Nothing gets through.
        self.cut: bool = False
        #: How often a segment is lost; its sender sends it again.
        self.loss: float = 0.0
        #: Pipes that hold segments back until the cut ends.
        self.stalled: dict[Pipe, None] = {}

    def latency(self) -> float:
        """Draw the seconds that a segment or a datagram takes."""
        return self.fabric.rng.uniform(self.latency_s_min, self.latency_s_max)

    def transit_s(self) -> float:
        """How long the next segment takes, in seconds, with the times that it is sent again."""
        seconds = self.latency()
        if self.loss:
            again_s = self.fabric.settings.retransmit_s_min
            while self.fabric.rng.random() < self.loss:
                self.fabric.counters["lost_segment"] += 1
                seconds += again_s
                again_s *= 2
        return seconds

    def restore(self) -> None:
        """End the delay and the loss of the link."""
        settings = self.fabric.settings
        self.latency_s_min, self.latency_s_max, self.loss = settings.latency_s_min, settings.latency_s_max, 0.0

    def heal(self) -> None:
        """End the cut; each sender notices in its own time."""
        self.cut = False
        now = trio.current_time()
        stalled, self.stalled = self.stalled, {}
        for pipe in stalled:
            late = self.fabric.rng.uniform(0.0, self.fabric.settings.retransmit_s_max)
            self.fabric.at(now + late, pipe.release)


class Pipe:
    """A direction of one connection."""

    __slots__ = ("fabric", "held", "items", "last_arrival", "link", "silent", "source", "stall", "target")

    def __init__(self, fabric: NetworkContext, link: Link, source: End) -> None:
        self.fabric = fabric
        self.link = link
        self.source = source
        #: Set once the connection is made; nothing is put in before.
        self.target: End | None = None
        #: Segments under way, first to arrive first.
        self.items: deque[Item] = deque()
        #: How many of them, from the first, would be there but for a cut.
        self.held = 0
        #: No segment overtakes another.
        self.last_arrival = 0.0
        #: Everything vanishes.
        self.silent = False
        #: Odd while the sender waits in vain for a sign of its peer; each change is a new number.
        self.stall = 0

    def put(self, item: Item, size: int = 0) -> None:
        """Send a segment of ``size`` bytes."""
        link = self.link
        departure = trio.current_time()
        if link.bytes_per_s is not None:
            link.free_at = departure = max(departure, link.free_at) + size / link.bytes_per_s
        arrival = max(self.last_arrival, departure + link.transit_s())
        self.last_arrival = arrival
        self.items.append(item)
        self.fabric.at(arrival, self.arrive)

    def arrive(self) -> None:
        """The time of one more segment has come."""
        if self.held >= len(self.items):
            return  # its segment was lost on the way
        if self.link.cut or self.held:
            self.held += 1
            self.fabric.counters["held"] += 1
            if self.link.cut:
                self.link.stalled[self] = None
            self.begin_stall()
        else:
            self._deliver()

    def release(self) -> None:
        """Deliver the segments that a cut has held back, unless the link is cut again."""
        if self.link.cut:
            if self.held:
                self.link.stalled[self] = None
            return
        self.end_stall()
        while self.held:
            self.held -= 1
            self._deliver()

    def lose(self) -> None:
        """Lose the segments on their way but for a random first part."""
        kept = self.fabric.rng.randint(0, len(self.items))
        part = self.items[kept] if kept < len(self.items) else None
        while len(self.items) > kept:
            self.items.pop()
        if type(part) is bytes and (size := self.fabric.rng.randint(0, len(part) - 1)):
            self.items.append(part[:size])
        self.held = min(self.held, len(self.items))

    def begin_stall(self) -> None:
        """The sender begins to wait for a sign of its peer, and will not do so for ever."""
        if self.stall % 2:
            return
        self.stall += 1
        deadline = trio.current_time() + self.fabric.settings.send_timeout_s
        self.fabric.at(deadline, partial(self._give_up, self.stall))

    def end_stall(self) -> None:
        """The peer has given a sign."""
        if self.stall % 2:
            self.stall += 1

    def _give_up(self, stall: int) -> None:
        if self.stall == stall:
            self.fabric.counters["timed_out"] += 1
            self.source.failed("timed out")

    def _deliver(self) -> None:
        item = self.items.popleft()
        if self.silent:
            self.fabric.counters["vanished"] += 1
            self.begin_stall()
            return
        assert self.target is not None
        self.target.arrived(item)
