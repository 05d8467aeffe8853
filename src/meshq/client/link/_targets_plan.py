"""The targets of a client that its URL names: they stay as they are, and the last one is tried first."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from meshq.abc import TargetPolicy, TopologySource
from meshq.endpoint import Endpoint


def _each_once(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    return tuple(dict.fromkeys(endpoints))


@attrs.frozen
class FixedTopology(TopologySource):
    """The endpoints of a URL, which never change: each once, also if the URL repeats an endpoint."""

    _endpoints: tuple[Endpoint, ...] = attrs.field(converter=_each_once)

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints in the order of the URL."""
        return self._endpoints


@attrs.frozen
class LastFirst(TargetPolicy):
    """The last node first, because only that node can resume the session; then the others in turn.

    A node that asked its clients to leave comes last.
    """

    def order(self, endpoints: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> Sequence[Endpoint]:
        """Return the endpoints in turn, from the last node on, or from the node behind the last one."""
        if last is None or last not in endpoints:
            return endpoints
        first = endpoints.index(last) + leave_last
        return [*endpoints[first:], *endpoints[:first]]
