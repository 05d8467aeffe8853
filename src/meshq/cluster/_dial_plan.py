"""Which connectors a cluster connection dials: announcements go in, with the connectors that are dialed now.

An announcement says where a node is, never how it is dialed: the scheme and the options of a URL are those of this
node's own connector.  So a forged announcement can't weaken a link (docs/design/cluster-discovery.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

#: The pause between two looks at all connectors, for each of these, seconds: each attempt to dial one is a reason to
#: look, so without a pause a thousand connectors at which nobody answers would take all of the node's time.
LOOK_PAUSE_S: Final = 0.001


@attrs.frozen
class AnnouncedNode:
    """A node that announces itself, and the URLs of its connectors, without options."""

    node_id: bytes
    name: str
    connectors: tuple[str, ...]


@attrs.frozen
class DialedConnector:
    """A connector that is dialed.

    ``static``: the settings name the connector.  ``needed``: the connection still needs it, announced or not.
    """

    url: str
    static: bool
    needed: bool


@attrs.frozen
class NotDialed:
    """A node that is not dialed, or not by each of its connectors, and the reason."""

    node_id: bytes
    text: str


@attrs.frozen
class DialPlan:
    """A plan: URLs to begin with, URLs to end with, and the nodes that are not dialed."""

    begin: list[str]
    end: list[str]
    refused: list[NotDialed]


@attrs.frozen
class _Decision:
    """The URL by which a node is dialed; None: by none, or by a static connector."""

    url: str | None
    refused: NotDialed | None


class DialRules:
    """The rules by which announced nodes are dialed.

    ``own``: the URL of this node's own connector, ``tcp://HOST:PORT`` or ``tls://HOST:PORT`` with options.
    ``static``: the endpoints that are dialed because the settings name them.  ``loopback_only``: nothing beyond this
    machine is dialed.
    """

    def __init__(self, own: str, static: Iterable[Endpoint] = (), *, loopback_only: bool = False) -> None:
        endpoint = Endpoint.parse(own)
        self._own = attrs.evolve(endpoint, options=())
        self._query = str(endpoint).removeprefix(str(self._own))
        self._static = {attrs.evolve(one, options=()) for one in static}
        self._loopback_only = loopback_only
        # The decisions of the last plan by node: a plan is made at each change, and a thousand nodes may be announced.
        self._decided: dict[AnnouncedNode, _Decision] = {}

    def plan(self, nodes: Sequence[AnnouncedNode], dialed: Sequence[DialedConnector]) -> DialPlan:
        """Compare the announced nodes with the connectors that are dialed."""
        self._decided = {node: self._decided.get(node) or self._decide(node) for node in nodes}
        decisions = self._decided.values()
        wanted = dict.fromkeys(one.url for one in decisions if one.url is not None)
        known = {one.url for one in dialed}
        return DialPlan(
            begin=[url for url in wanted if url not in known],
            end=[one.url for one in dialed if not (one.static or one.needed or one.url in wanted)],
            refused=[one.refused for one in decisions if one.refused is not None],
        )

    def fits(self, url: str) -> bool:
        """Whether a URL of an earlier life is one that these rules would make of an announcement."""
        inside = url.partition("?")[0].removeprefix("(").removesuffix(")").split(",")
        try:
            places = [Endpoint.parse(one) for one in inside]
        except SettingsError:
            return False
        return all(self._reason(one) is None for one in places) and self._url(places) == url

    def _decide(self, node: AnnouncedNode) -> _Decision:
        announced = list(map(Endpoint.parse, node.connectors))
        places = [place for place in announced if self._reason(place) is None]
        refused = None
        # A node that is dialed may have more connectors, for others; but nobody else has this node's.
        if not places or self._own in announced:
            reasons = [f"{place} {self._reason(place)}" for place in announced if place not in places]
            shown = f"the node {node.name!r} ({node.node_id.hex()})"
            refused = NotDialed(node.node_id, f"{shown} is not dialed there: {', '.join(reasons)}")
        dialed = places and not self._static.issuperset(places)
        return _Decision(self._url(places) if dialed else None, refused)

    def _reason(self, place: Endpoint) -> str | None:
        """Return why an announced place is not dialed; None: it is dialed."""
        if place.scheme != self._own.scheme:
            return f"is no {self._own.scheme}:// connector, as this node's own is"
        if place == self._own:
            return "is this node's own connector"
        if self._loopback_only and not place.loopback:
            return "is beyond this machine, and the password is the default one"
        return None

    def _url(self, places: Sequence[Endpoint]) -> str:
        shown = ",".join(map(str, places))
        return f"{shown if len(places) == 1 else f'({shown})'}{self._query}"
