"""How much is spent on an address before anybody there is known: how many connections, and after what delay.

A password is guessed by trying.  Each failure makes the next connection of the same address wait longer before it
is served, up to a maximum; failures are forgotten one by one as time goes by.  A success forgets nothing: whoever
has one password could otherwise guess another one undelayed.

The address is all of an IPv4 address, and of an IPv6 address the 64 bits that one host can't change.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from meshq import limits
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
    """What counts as one address, of a peer's ``host:port``."""
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


class Guard:
    """The addresses that have connections of unknown peers, or have failed lately.  ``now``: any rising clock, in s."""

    def __init__(self) -> None:
        # Connections that have not authenticated, by address; above 0.
        self._open: dict[str, int] = {}
        # The one that failed longest ago comes first.
        self._failed: dict[str, _Failures] = {}

    def arrived(self, address: str) -> bool:
        """A connection has come; returns whether there is room for it.

        Either way it counts until ``settled`` is called for it.
        """
        count = self._open[address] = self._open.get(address, 0) + 1
        return count <= limits.UNAUTHENTICATED_PER_ADDRESS_MAX

    def delay(self, address: str, now: float) -> float:
        """After how many seconds a connection that comes now may be served."""
        failures = self._failures(address, now)
        return min(DELAY_S_MIN * 2 ** (failures - 1), DELAY_S_MAX) if failures else 0.0

    def settled(self, address: str) -> None:
        """A connection is gone, or it is known who is there."""
        count = self._open.get(address, 0)
        invariant(count > 0, "what is settled has arrived")
        if count > 1:
            self._open[address] = count - 1
        else:
            del self._open[address]

    def failed(self, address: str, now: float) -> None:
        """Somebody there could not prove who they are."""
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
        return f"<Guard unknown={sum(self._open.values())} failed={len(self._failed)}>"
