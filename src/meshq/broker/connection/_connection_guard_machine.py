"""The guard of connections: bounds for all, bounds per address for those without a session, and a delay after failures.

A password is guessed by trying.  Each failure makes the next connection of the same address wait longer before it
is served, up to a maximum; failures are forgotten one by one as time goes by.  A success forgets nothing: otherwise a
client with one password could guess another one without delay.

The address is all of an IPv4 address, and of an IPv6 address the 64 bits that one host can't change.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from meshq import limits
from meshq.broker.connection._connection_bounds_plan import ConnectionBounds, connection_bounds
from meshq.errors import invariant

#: Seconds to wait after one failure; doubled by each further one.
DELAY_S_MIN: Final = 0.25
DELAY_S_MAX: Final = 8.0
#: Seconds after which one failure is forgotten.
FORGET_S: Final = 30.0
#: Failures beyond this number change nothing.
FAILURES_MAX: Final = 6
_HOST_BITS: Final = 64

assert DELAY_S_MIN * 2 ** (FAILURES_MAX - 1) >= DELAY_S_MAX, "the number of failures must reach the longest delay"


def address_of(peer: str) -> str:
    """Return the part of a peer's ``host:port`` that counts as one address."""
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _HOST_BITS), strict=False))


class _Failures(NamedTuple):
    number: int
    #: When ``number`` was right.
    at: float


class Arrival(NamedTuple):
    """The decision about a new connection."""

    #: Why there is no room for it; empty if there is.
    refused: str
    #: The connection that has to go in its place.
    displaced: int | None = None


class ConnectionGuard:
    """The connections of a node, and the addresses that have failed lately.  ``now``: any rising clock, in s."""

    def __init__(self, bounds: ConnectionBounds | None = None) -> None:
        self._bounds = bounds or connection_bounds(limits.DESCRIPTORS_UNKNOWN)
        #: Connections that are there; of them, those that have no session yet.
        self.connections = 0
        self.unauthenticated = 0
        # Those without a session, by address, the oldest of each first.
        self._open: dict[str, dict[int, None]] = {}
        # The one that failed longest ago comes first.
        self._failed: dict[str, _Failures] = {}

    def arrived(self, address: str, number: int, *, trusted: bool = False) -> Arrival:
        """A connection has come, with a number of its own: whether there is room for it.

        If there is room it counts until ``settled`` and ``gone`` are called for it.  ``trusted``: whoever is there need
        not say who they are, so the bound of one address does not hold.
        """
        bounds, mine = self._bounds, len(self._open.get(address, ()))
        displaced: int | None = None
        if mine >= bounds.per_address and not trusted:
            return Arrival(f"{mine} connections of this address have no session yet")
        if self.connections >= bounds.connections:
            displaced = self._displace(mine)
            if displaced is None:
                return Arrival(f"the node has its {bounds.connections} connections")
        elif self.unauthenticated >= bounds.unauthenticated:
            displaced = self._displace(mine)
            if displaced is None:
                return Arrival(f"the node has its {bounds.unauthenticated} connections without a session")
        self.connections += 1
        self.unauthenticated += 1
        self._open.setdefault(address, {})[number] = None
        return Arrival("", displaced)

    def _displace(self, mine: int) -> int | None:
        """The oldest connection without a session of the address that has most; None if it has hardly more.

        So strangers who sit on all the room there is keep nobody out who comes from elsewhere.
        """
        largest = max(self._open, key=lambda address: len(self._open[address]), default="")
        if len(self._open.get(largest, ())) <= mine + 1:
            return None
        number = next(iter(self._open[largest]))
        self.settled(largest, number)
        return number

    def delay(self, address: str, now: float) -> float:
        """After how many seconds a connection that comes now may be served."""
        failures = self._failures(address, now)
        return min(DELAY_S_MIN * 2 ** (failures - 1), DELAY_S_MAX) if failures else 0.0

    def settled(self, address: str, number: int) -> None:
        """A connection is gone, has a session, or was displaced; silent the second time."""
        there = self._open.get(address)
        if there is None or number not in there:
            return
        del there[number]
        self.unauthenticated -= 1
        if not there:
            del self._open[address]

    def gone(self) -> None:
        """A connection is gone."""
        invariant(self.connections > self.unauthenticated, "what is gone was settled")
        self.connections -= 1

    def failed(self, address: str, now: float) -> None:
        """Note a failed login from an address."""
        count = min(self._failures(address, now) + 1, FAILURES_MAX)
        self._failed.pop(address, None)
        self._failed[address] = _Failures(count, now)
        if len(self._failed) > limits.GUARDED_ADDRESSES_MAX:
            del self._failed[next(iter(self._failed))]

    def _failures(self, address: str, now: float) -> int:
        failures = self._failed.get(address)
        if failures is None:
            return 0
        left = failures.number - int((now - failures.at) / FORGET_S)
        if left <= 0:
            del self._failed[address]
            return 0
        return left

    def __repr__(self) -> str:
        return f"<Guard connections={self.connections} unknown={self.unauthenticated} failed={len(self._failed)}>"
