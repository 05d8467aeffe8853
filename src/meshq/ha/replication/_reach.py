"""The way between the nodes of a pair: their cluster connection."""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import cast

import attrs

from meshq.abc import NodeControl
from meshq.client import ClientFactory
from meshq.cluster import ClusterConnection
from meshq.endpoint import Endpoint
from meshq.errors import NotActiveError, SettingsError
from meshq.ha.replication._replication_rules import HostedAt
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication.places import KnownPlace
from meshq.ha.votes import apart_from
from meshq.wire import FINGERPRINT_BYTES

#: Seconds for which a node that may live is asked at most, where no silence ends a link.
PATIENCE_S_MAX = 60.0


@attrs.frozen
class Reach:
    """The cluster connection of a pair, as one of its nodes has it."""

    control: NodeControl
    connection: ClusterConnection
    #: The node and the host of a backup that is hosted; None: the node has a process of its own.
    hosted: HostedAt | None = None
    #: Remembers the place of a replica that another node hosts; None: nothing is remembered yet.
    known: KnownPlace | None = None

    @classmethod
    def of(cls, control: NodeControl, cluster_name: str | None, hosted: HostedAt | None = None) -> Reach:
        """Return the way by the cluster connection of a name; None: by the first one.

        Raises:
            SettingsError: the broker has none of that name, or one of its connectors can't be dialed.
        """
        found = [cast("ClusterConnection", one) for one in control.services if one.kind == "cluster_connection"]
        for connection in found:
            if cluster_name in (None, connection.name):
                for error in connection.wrong_connectors(control.connectors, control.env):
                    raise error
                return cls(control, connection, hosted)
        allowed = f"one of the broker's cluster connections: {', '.join(one.name for one in found) or 'none'}"
        raise SettingsError("cluster_name", cluster_name, allowed)

    @property
    def own_url(self) -> str:
        """The URL by which the other nodes reach the node."""
        return self.connection.settings.own_url(self.control)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the other nodes, in their order; a backup that is hosted asks its own node only."""
        connectors, own = self.control.connectors, self.own_url
        named = [connectors.get(name, name) for name in self.connection.settings.static_connectors]
        named = named if self.hosted is None else [self.hosted.node_url]
        known = () if self.known is None else self.known.urls
        return tuple(dict.fromkeys(url for url in (*named, *known) if not same_place(url, own)))

    def before(self, url: str, standing: Standing) -> Standing:
        """Return the memory with which the node at a URL is followed."""
        return standing if self.known is None else self.known.before(url)

    @property
    def host_url(self) -> str:
        """The URL of the host of this node; empty: the node has a process of its own."""
        return "" if self.hosted is None else self.hosted.host_url

    @property
    def call_timeout(self) -> float:
        """Seconds for which confirms wait for a replica from which nothing comes; never without end."""
        found = self.connection.settings.call_timeout
        return found if found < math.inf else PATIENCE_S_MAX

    @property
    def ttl_ms(self) -> int:
        """Milliseconds of silence after which a link is given up, a day at most."""
        return math.ceil(min(self.connection_ttl * 1000, 86_400_000))

    @property
    def connection_ttl(self) -> float:
        """Seconds of silence after which a link is given up."""
        return self.connection.settings.connection_ttl

    @property
    def patience(self) -> float:
        """Seconds for which a node that may live is asked again."""
        return min(self.connection_ttl, PATIENCE_S_MAX)

    @property
    def pause_s_max(self) -> float:
        """Seconds for which a node may stand still, and not be given up by the other one."""
        return min(self.call_timeout, self.patience)

    def factory(self, url: str) -> ClientFactory:
        """Make the factory of links to a node.  Raises: SettingsError."""
        settings = self.connection.settings.client()
        return self.connection.login.factory(url, "static_connectors", env=self.control.env, **settings)

    @property
    def lives(self) -> tuple[str, ...]:
        """The URLs of the other nodes of the cluster that serve, as the node knows them while it does so, too."""
        try:
            nodes = self.connection.topology()[1:]
        except NotActiveError:
            return ()
        found = (self._dialed(one.primary) for one in nodes)
        return tuple(sorted({url for url in found if url and not same_place(url, self.own_url)}))

    def voting(self, host: str) -> tuple[str, ...]:
        """Return the URLs of the nodes that are to vote.  ``host``: the URL of the host of the replica; empty: none."""
        lives, hosts = self.lives, [place for place in (host, self.host_url) if place]
        return apart_from(lives, [one for one in lives if any(same_place(one, place) for place in hosts)])

    def _dialed(self, place: str) -> str:
        """Return the URL of a place with the options of the node's own; empty: it is not dialed."""
        try:
            own, other = Endpoint.parse(self.own_url), Endpoint.parse(place)
        except SettingsError:
            return ""
        near = other.loopback or not self.connection.login.default
        return str(attrs.evolve(other, options=own.options)) if other.scheme == own.scheme and near else ""

    def fingerprint(self, node_id: bytes) -> bytes:
        """Return a proof about a node that needs the encryption key of the store; empty: there is no key."""
        keys = self.control.encryption_keys
        if not keys:
            return b""
        return blake2b(node_id, digest_size=FINGERPRINT_BYTES, key=keys[0].reveal(), person=b"meshq replicas").digest()


def same_place(one: str, other: str) -> bool:
    """Whether two URLs name one place: options, capitals of a host and the way to write it make no difference."""
    try:
        places = [attrs.evolve(Endpoint.parse(url), options=()) for url in (one, other)]
    except SettingsError:
        return one == other
    return places[0] == places[1]
