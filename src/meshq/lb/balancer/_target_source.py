"""Where the targets of a pool come from: connectors, the nodes of a cluster, or nodes that announce themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from meshq.abc import Env, LocalBroker, NodeControl, Service
from meshq.client import BrokerProbe, ClientFactory, factory_of
from meshq.cluster import ClusterConnection
from meshq.endpoint import Endpoint, told_place
from meshq.errors import NotActiveError, SettingsError
from meshq.lb.balancer._settings import ClusterPool, DiscoveryPool, StaticPool

PoolSettings = StaticPool | ClusterPool | DiscoveryPool


@attrs.frozen
class ListedTarget:
    """A target as its source lists it.  ``place``: what clients are told; ``dialed``: how this broker reaches it."""

    place: str
    dialed: str


def cluster_of(services: Sequence[Service], pool: PoolSettings) -> ClusterConnection | None:
    """Return the cluster connection of a pool, or the first one of the broker; None: there is none."""
    found = [one for one in services if isinstance(one, ClusterConnection)]
    if isinstance(pool, ClusterPool):
        found = [one for one in found if one.name == pool.cluster_connection]
    return found[0] if found else None


def checked_connectors(pool: PoolSettings, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
    """Return the errors of the connectors that a pool names."""
    wrong: list[SettingsError] = []
    for name in pool.static_connectors if isinstance(pool, StaticPool) else ():
        url = connectors.get(name, name)
        if "://" not in url:
            known = ", ".join(sorted(connectors)) or "none"
            wrong.append(SettingsError("static_connectors", name, f"URLs, or connectors of the broker: {known}"))
            continue
        try:
            place = Endpoint.parse(url)
            if not told_place(url) or place.scheme == "inproc":
                raise SettingsError(
                    "static_connectors", name, "what clients can dial: tcp://HOST:PORT, tls://HOST:PORT"
                )
            _factory(pool, url, env)
        except SettingsError as error:
            wrong.append(error)
    return wrong


def _factory(pool: PoolSettings, url: str, env: Env) -> ClientFactory:
    return factory_of(url, "static_connectors", env=env, **_login(pool, url))


def _login(pool: PoolSettings, url: str) -> dict[str, Any]:
    tls = pool.tls if url.startswith("tls://") else None
    insecure = pool.insecure and "insecure=" not in url
    return {"user": pool.user or None, "password": pool.password, "tls": tls} | ({"insecure": True} if insecure else {})


def own_place(control: NodeControl) -> str:
    """Where clients reach a broker; empty: nowhere that can be told."""
    return next(filter(None, map(told_place, control.acceptors())), "")


class TargetSource:
    """The list of a pool's targets, as it is now, and the way to probe one."""

    def __init__(self, pool: PoolSettings, broker: LocalBroker) -> None:
        self._pool = pool
        self._control: NodeControl = broker.control
        self._cluster = cluster_of(broker.services, pool)

    def listed(self) -> list[ListedTarget]:
        """Return the targets, in their order; of nodes that of their ids, the same at all brokers.

        The broker itself is among them where a node list has it.
        """
        pool, own = self._pool, self._control.node_id.hex()
        if isinstance(pool, StaticPool):
            return [self._target(self._control.connectors.get(name, name)) for name in pool.static_connectors]
        if isinstance(pool, DiscoveryPool):
            # None is known as long as the group, which may begin after this service, does not listen.
            found = {node.node_id.hex(): node.connectors[0].primary for node in pool.discovery_group.known}
        else:
            found = self._members()
        found.pop(own, None)
        if pool.local_target_enabled and self.own_place:
            found[own] = self.own_place
        targets = [self._target(found[node_id]) for node_id in sorted(found)]
        # A node of this process only is nothing to send others to.
        return [one for one in targets if one.place and not one.place.startswith("inproc:")]

    def _members(self) -> dict[str, str]:
        assert self._cluster is not None
        try:
            nodes = self._cluster.topology()
        except NotActiveError:
            # The cluster connection begins after this service, or has ended before it.
            return {}
        return {node.node_id: node.primary for node in nodes}

    @property
    def own_place(self) -> str:
        """Where clients reach the broker itself; empty: nowhere that can be told."""
        return own_place(self._control)

    def _target(self, url: str) -> ListedTarget:
        place = told_place(url)
        return ListedTarget(place, url)

    def probe(self, url: str) -> BrokerProbe:
        """Make a probe of a target.

        Raises:
            SettingsError: it can't be dialed.
        """
        control, pool = self._control, self._pool
        label = f"balancer of {control.name}"
        if self._cluster is not None and pool.user is None:
            insecure = pool.insecure or "insecure=true" in self._cluster.settings.own_url(control)
            options = {"insecure": True} if insecure and "insecure=" not in url else {}
            factory = self._cluster.login.factory(url, "pool", env=control.env, **options)
            return factory.probe(label=label, role="peer", instance=control.instance)
        return _factory(pool, url, control.env).probe(label=label)
