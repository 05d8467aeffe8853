"""Which announced places a client dials, when its first wait is over, and in which order it tries the places.

An announcement says where a broker is, never how it is dialed: that the client's own settings say.  So a forged
announcement can't weaken a connection (docs/design/client-discovery.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

from meshq.abc import TargetPolicy
from meshq.endpoint import Endpoint


@attrs.frozen
class AnnouncedPlaces:
    """The places that are dialed, each once, and how many brokers have one; for others, as text, why they are not."""

    dialed: tuple[Endpoint, ...]
    brokers: int
    refused: tuple[str, ...]


@attrs.frozen(kw_only=True)
class PlaceRules:
    """The rules by which announced places are dialed.

    ``tls``: the client's settings say whom to believe; then every connection is over TLS, and without them none is.
    ``insecure``: plaintext to other machines is allowed.
    """

    tls: bool
    insecure: bool

    def places(self, brokers: Iterable[Sequence[str]]) -> AnnouncedPlaces:
        """Return the places of brokers that each announce some connectors, in their order."""
        dialed: dict[Endpoint, None] = {}
        refused: dict[str, None] = {}
        reached = 0
        for announced in brokers:
            places = list(map(Endpoint.parse, announced))
            reasons = {place: self._reason(place) for place in places}
            found = [place for place in places if reasons[place] is None]
            reached += bool(found)
            dialed.update(dict.fromkeys(found))
            refused.update(dict.fromkeys(f"{place} {reason}" for place, reason in reasons.items() if reason))
        return AnnouncedPlaces(tuple(dialed), reached, tuple(refused))

    def _reason(self, place: Endpoint) -> str | None:
        """Return why a place is not dialed; None: it is dialed."""
        if self.tls and place.scheme != "tls":
            return "is no tls:// connector, and the client has tls="
        if not self.tls and place.scheme == "tls":
            return "is a tls:// connector, and the client has no tls= that says whom to believe"
        if not (self.tls or self.insecure or place.loopback):
            return "is plaintext beyond this machine, and the client has no insecure=True"
        return None


@attrs.frozen(kw_only=True)
class InitialWait:
    """The wait of a factory's first connection, in seconds of one clock.

    ``made_at``: when the factory was made.  ``timeout``, ``wanted``: ``initial_wait_timeout`` and ``initial_wait_for``.
    """

    made_at: float
    timeout: float
    wanted: int | None

    def until(self, *, known: int, used_at: float, waited: bool) -> float:
        """Return until when a connection that began at ``used_at`` waits; minus infinity: it doesn't.

        ``known``: the brokers that are known now.  ``waited``: an earlier connection has waited.
        """
        if self.wanted is not None and known >= self.wanted:
            return -math.inf
        first = -math.inf if waited else self.made_at + self.timeout
        # Who is not in use hears nothing, so that nobody is known also long after the making.
        return first if known else max(first, used_at + self.timeout)


@attrs.frozen
class InTurn(TargetPolicy):
    """The last node first, because only that node can resume the session; then the others in turn from ``start`` on.

    Clients of one factory have rising starts, so that they are spread over the nodes.  A node that asked its clients to
    leave comes last.
    """

    start: int

    def order(self, endpoints: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> Sequence[Endpoint]:
        """Return the endpoints of one round."""
        others = [endpoint for endpoint in endpoints if endpoint != last]
        first = self.start % len(others) if others else 0
        turned = [*others[first:], *others[:first]]
        if last is None or last not in endpoints:
            return turned
        return [*turned, last] if leave_last else [last, *turned]
