"""Which announced places a client dials, and when its first wait is over.

An announcement says where a broker is, never how it is dialed: that the client's own settings say.  So a forged
announcement can't weaken a connection (docs/design/client-discovery.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

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
    ``insecure``: plaintext to other machines is allowed.  ``options``: the options of each place.
    """

    tls: bool
    insecure: bool
    options: tuple[tuple[str, str], ...] = ()

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
            dialed.update((attrs.evolve(place, options=self.options), None) for place in found)
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
