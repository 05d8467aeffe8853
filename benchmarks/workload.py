"""What is measured, as plain data that passes between processes, and the clock for latencies."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Any

import attrs

#: Body of a message that is to arrive exactly once: its number.
NUMBER = struct.Struct("<Q")
#: Body of a latency message: when it was sent, on the machine-wide monotonic clock.
STAMP = struct.Struct("<d")


@attrs.frozen(kw_only=True)
class Workload:
    """One stream of messages from one producer process through one broker to one consumer process."""

    #: What a role does with it: "stream", "one" (each send awaited), "forward" (through two brokers), "inprocess-…",
    #: "backlog", "idle"; and of a cluster: "redistribute", "drain", "join", "idle-cluster"; and of a balancer:
    #: "redirects", "storm"; and of a pair: "failover", "replicated", "catch-up"; and of a network of brokers: "hops",
    #: "hops-activemq", "demand".
    kind: str = "stream"
    count: int = 1
    size: int = 100
    durable: bool = True
    #: Messages in one frame or pipeline, where the system under test leaves that to its caller.
    frame: int = 100
    #: Messages sent and not yet confirmed.
    window: int = 4_000
    #: Messages a second; 0 is as fast as it goes.
    rate: float = 0.0
    properties: int = 0
    duplicate_ids: bool = False
    #: Different priorities; 0: all messages have the usual one.
    priorities: int = 0
    #: The consumer's; all messages fit it.
    filter: str = ""
    #: Bytes in the queue beyond which it pages; 0: as much as memory has room for.
    page_at: int = 0
    #: Messages sent in one transaction; 0: none is used.
    transaction: int = 0
    #: Sending tasks of an in-process run.
    tasks: int = 1
    #: Seconds that an idle broker is watched.
    seconds: float = 0.0
    queues: int = 0
    #: Of a cluster that a node joins, with it, or that idles; or of a chain of brokers in a network.
    nodes: int = 2
    #: How the nodes of a pair come to serve: "shared_store", "replication"; with settings that notice a loss soon; how
    #: often one is lost, and whether it stands still and closes no connection.
    policy: str = ""
    tuned: bool = False
    trials: int = 0
    silent: bool = False
    #: Where to reach the broker; set by the runner once it listens.
    url: str = ""
    #: A directory of this run's own.
    directory: str = ""
    #: The folder that meshq is imported from: another commit's, or, if empty, this checkout's.
    product: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


class LatencyClock:
    """Paces a sender and reads latencies at the receiver.

    A message is stamped when its send begins.  A sender that falls behind by more than one interval stamps with the
    time it should have kept, so that a stall counts against every message it delayed.
    """

    def __init__(self, rate: float) -> None:
        self.interval = 1.0 / rate if rate else 0.0
        self.due = time.monotonic() + self.interval
        self.latencies: list[float] = []

    def pause(self) -> float:
        """Seconds to sleep before the next send."""
        return max(0.0, self.due - time.monotonic())

    def stamp(self, size: int) -> bytes:
        """The body of the next message, of ``size`` bytes."""
        now = time.monotonic()
        sent_at = now if now - self.due <= self.interval else self.due
        self.due += self.interval
        return STAMP.pack(sent_at).ljust(size, b"\0")

    def arrived(self, bodies: Iterable[bytes]) -> None:
        """Note that these have just been received; without a rate there is nothing to note."""
        if not self.interval:
            return
        now = time.monotonic()
        self.latencies.extend(now - STAMP.unpack_from(body)[0] for body in bodies)

    def result(self) -> dict[str, float]:
        """Percentiles in microseconds, without the first tenth, which warms up."""
        values = sorted(self.latencies[len(self.latencies) // 10 :])
        if not values:
            return {}
        return {
            f"{name}_us": values[min(len(values) - 1, int(len(values) * share))] * 1e6
            for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
        }


def received(workload: Workload, count: int, body_bytes: int, clock: LatencyClock | None = None) -> dict[str, Any]:
    """A consumer's report, made when its last acknowledgement is confirmed; checks that nothing is missing."""
    ended = time.monotonic()
    if (count, body_bytes) != (workload.count, workload.count * workload.size):
        raise RuntimeError(
            f"received {count} messages of {body_bytes} bytes, expected {workload.count} of {workload.size} bytes each"
        )
    return {"ended": ended} | (clock.result() if clock else {})
