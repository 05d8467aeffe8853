"""The settings of a colocated backup, which come from its node and from its host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import attrs

from meshq.abc import HAPolicy
from meshq.cluster import ClusterConnection
from meshq.errors import SettingsError
from meshq.ha import SharedStoreBackup
from meshq.ha.colocated import BackupRequest, Colocated, HostedPlaces, HostedReplica, HostedStoreBackup, HostRules
from meshq.ha.replication import HostedAt
from meshq.node._settings import BrokerSettings
from meshq.settings import Acceptor, AddressSettings, JournalSettings, Security

#: What a backup has of its node, by the keywords of ``Broker``.
INHERITED: Final = (
    "memory_limit",
    "stop_timeout",
    "transaction_timeout",
    "max_session_ttl",
    "max_sessions_per_user",
    "advisory_support",
)


def policy_of(settings: BrokerSettings) -> Colocated | None:
    """Return the policy of a node that runs backups of others, or asks for one; None: it does neither."""
    return settings.ha if isinstance(settings.ha, Colocated) else None


def host_rules(settings: BrokerSettings, policy: Colocated) -> HostRules:
    """Return the settings of a host by which it decides about backups."""
    return HostRules(
        name=settings.name,
        data_dir=settings.data_dir or "",
        kind=policy.backup.kind,
        replicates=policy.replicates,
        max_backups=policy.max_backups,
        backup_port_offset=policy.backup_port_offset,
        acceptors=tuple(str(attrs.evolve(one.endpoint, options=())) for one in settings.acceptors),
        connectors=settings.connectors,
        excludes=policy.excludes,
        group_name=getattr(policy.backup, "group_name", None),
        users=users_digest(settings.security),
        encrypted=bool(settings.journal.encryption_keys),
        shared_root=policy.shared_root or "",
    )


def backup_request(settings: BrokerSettings, policy: Colocated, node_id: bytes, url: str) -> BackupRequest:
    """Return the request of a node for a backup."""
    inherited: dict[str, Any] = {name: getattr(settings, name) for name in INHERITED}
    given = {
        pattern: {name: getattr(one, name) for name in one.given} for pattern, one in settings.address_settings.items()
    }
    return BackupRequest(
        name=settings.name,
        node_id=node_id.hex(),
        url=url,
        kind=policy.primary.kind.replace("primary", "backup"),
        group_name=getattr(policy.primary, "group_name", None),
        data_dir="" if policy.replicates else settings.data_dir or "",
        users=users_digest(settings.security),
        encrypted=bool(settings.journal.encryption_keys),
        settings={**inherited, "segment_bytes": settings.journal.segment_bytes},
        address_settings=given,
    )


def users_digest(security: Security | None) -> str:
    """Return a digest of users, roles and permissions, without passwords; empty: there is no security."""
    if security is None:
        return ""
    told = [
        sorted(security.users),
        sorted(security.certificates.items()),
        None if security.roles is None else sorted((user, repr(one)) for user, one in security.roles.items()),
        None if security.permissions is None else sorted((at, repr(one)) for at, one in security.permissions.items()),
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def hosted_settings(
    settings: BrokerSettings, policy: Colocated, request: BackupRequest, places: HostedPlaces
) -> dict[str, Any]:
    """Return the keywords of the broker that is the backup of a node.

    The node says what it is to hold and how; who comes in, by which acceptors, and how other nodes are reached are the
    host's, whose machine it is.

    Raises:
        SettingsError: a setting of the node is not allowed.
    """
    strange = [name for name in request.settings if name not in (*INHERITED, "segment_bytes")]
    if strange:
        raise SettingsError("settings", strange[0][:64], f"those that a backup has of its node: {', '.join(INHERITED)}")
    inherited = {name: value for name, value in request.settings.items() if name != "segment_bytes"}
    if type(inherited.get("stop_timeout")) in (int, float):
        # A node does not say how long another one takes to stop.
        inherited["stop_timeout"] = min(inherited["stop_timeout"], settings.stop_timeout)
    if "segment_bytes" in request.settings:
        journal = attrs.evolve(settings.journal, segment_bytes=request.settings["segment_bytes"])
    else:
        journal = JournalSettings(encryption_keys=settings.journal.encryption_keys)
    return {
        **inherited,
        "data_dir": places.data_dir,
        "journal": journal,
        "address_settings": _address_settings(request.address_settings),
        "acceptors": [
            Acceptor(url, tls=one.tls, insecure=one.insecure or not one.endpoint.loopback)
            for url, one in zip(places.acceptors, settings.acceptors, strict=True)
        ],
        "connectors": places.connectors,
        "security": settings.security,
        "services": [_cluster(settings, policy, request.url)],
        "ha": _policy(settings, policy, request.url),
        "node_id": bytes.fromhex(request.node_id),
    }


def _policy(settings: BrokerSettings, policy: Colocated, url: str) -> HAPolicy:
    """Return the policy of a backup, which makes no store of another node and starts without waiting to serve."""
    backup = policy.backup
    if isinstance(backup, SharedStoreBackup):
        return HostedStoreBackup.of(backup)
    return HostedReplica.of(backup, HostedAt(node_url=url, host_url=_own_url(settings, _cluster_of(settings, policy))))


def _cluster_of(settings: BrokerSettings, policy: Colocated) -> ClusterConnection:
    """Return the cluster connection of the host that its backups use."""
    named = getattr(policy.backup, "cluster_name", None)
    clusters = [cast(ClusterConnection, one) for one in settings.services if one.kind == "cluster_connection"]
    return next(one for one in clusters if named in (None, one.name))


def _own_url(settings: BrokerSettings, cluster: ClusterConnection) -> str:
    """Return the URL by which other nodes reach the host."""
    host = next(iter(settings.dialed()), "") if cluster.settings.connector is None else ""
    return host or settings.connectors.get(cluster.settings.connector or "", "")


def _address_settings(given: Mapping[str, Any]) -> dict[str, AddressSettings]:
    known = {one.name for one in attrs.fields(AddressSettings) if one.init}
    for pattern, values in given.items():
        wrong = [name for name in values if name not in known] if type(values) is dict else [pattern]
        if wrong:
            raise SettingsError("address_settings", str(wrong[0])[:64], "settings that this version knows")
    return {pattern: AddressSettings(**values) for pattern, values in given.items()}


def _cluster(settings: BrokerSettings, policy: Colocated, url: str) -> ClusterConnection:
    """Return the cluster connection of a backup: the host's, to its node first, and to the nodes of the host."""
    found = _cluster_of(settings, policy)
    others: Sequence[str] = [settings.connectors.get(one, one) for one in found.settings.static_connectors]
    host = _own_url(settings, found)
    static = [one for one in dict.fromkeys((url, host, *others)) if one and not one.endswith(":0")]
    about = {one.name: getattr(found.settings, one.name) for one in attrs.fields(type(found.settings)) if one.init}
    about |= {"static_connectors": static, "discovery": None, **found.login.keywords()}
    return ClusterConnection(**about)
