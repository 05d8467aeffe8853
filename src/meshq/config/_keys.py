"""Which keys a table of the file may have: the names, types and defaults of the settings of a program."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from meshq.abc import BroadcastEndpoint, HAPolicy
from meshq.bridge import Bridge
from meshq.cluster import ClusterConnection
from meshq.config._destinations_table import DestinationsTable
from meshq.config._pool_table import PoolTable
from meshq.config._quorum_table import QUORUMS, AuthTable
from meshq.config._units_format import units_of
from meshq.discovery import BroadcastGroup, DiscoveryGroup, SharedDirectory, StaticUnicast, UDPMulticast, Zeroconf
from meshq.ha import (
    Colocated,
    LiveOnly,
    QuorumNode,
    ReplicationBackup,
    ReplicationPrimary,
    ScaleDown,
    SharedStoreBackup,
    SharedStorePrimary,
)
from meshq.lb.balancer import BrokerBalancer
from meshq.network import NetworkConnector
from meshq.node import Broker
from meshq.settings import TLS

#: The kinds of services, as a file names them.
SERVICES: Final[dict[str, type[Any]]] = {
    service.kind: service
    for service in (Bridge, ClusterConnection, BroadcastGroup, DiscoveryGroup, BrokerBalancer, NetworkConnector)
}
#: The kinds of endpoints of discovery, as a file names them.
ENDPOINTS: Final[dict[str, type[BroadcastEndpoint]]] = {
    "udp": UDPMulticast,
    "directory": SharedDirectory,
    "unicast": StaticUnicast,
    "zeroconf": Zeroconf,
}

#: The policies of high availability, as a file names them, and other words in these names.
POLICIES: Final[dict[str, type[HAPolicy]]] = {
    policy.kind: policy
    for policy in (LiveOnly, SharedStorePrimary, SharedStoreBackup, ReplicationPrimary, ReplicationBackup, Colocated)
}
POLICY_WORDS: Final = {"master": "primary", "live": "primary", "slave": "backup"}
#: Other names of their keys.
POLICY_KEYS: Final = {
    "allow_fail_back": "allow_failback",
    "max_saved_replicated_journals_size": "max_saved_replicated_journals",
    "vote-on-replication-failure": "vote_on_replication_failure",
}


class GroupName:
    """The name of a discovery group of the same file."""


class QuorumOfPolicy:
    """The quorum of a policy: a table that names its kind."""


class PolicyName:
    """The name of a policy, or ``module:Class``; the same one several times is the same policy."""


#: Keys whose type in a file is another one than in a program.
_IN_A_FILE: Final[dict[str, Any]] = {
    "tls": TLS | None,
    "ha": HAPolicy,
    # Of a node that runs backups of others: a table each, with its policy.
    "primary": HAPolicy,
    "backup": HAPolicy,
    "pool": PoolTable,
    "policy": PolicyName,
    "quorum": QuorumOfPolicy,
    "auth": AuthTable | None,
    "dynamically_included": Sequence[DestinationsTable],
    "excluded": Sequence[DestinationsTable],
    "statically_included": Sequence[DestinationsTable],
}
#: For programs only: the outside world of tests.
_NEVER: Final = ("env",)


@attrs.frozen
class Key:
    """A key of a table."""

    name: str
    type: Any
    default: object

    @property
    def required(self) -> bool:
        """Whether the key is required."""
        return self.default is inspect.Parameter.empty

    @property
    def is_number(self) -> bool:
        """Whether the key takes a number."""
        return bool({int, float} & {self.type, *typing.get_args(self.type)})

    @property
    def units(self) -> dict[str, float] | None:
        """The units in which the number may be given."""
        return units_of(self.name) if self.is_number else None

    @property
    def settable(self) -> bool:
        """Whether a file can set the key: keys that take any object need a program."""
        return self.type not in (Any, object, type(None), None)


def is_table(kind: object) -> bool:
    """Whether values of this type are tables of settings."""
    return kind in (Broker, QuorumNode) or kind in SERVICES.values() or (isinstance(kind, type) and attrs.has(kind))


def keys_of(kind: type[Any]) -> dict[str, Key]:
    """The keys of a table from which a ``kind`` is made, in the order of its signature."""
    types = _types(kind)
    if attrs.has(kind):
        defaults = {_name(field): _default(field) for field in attrs.fields(kind) if field.init}
    else:
        defaults = {one.name: one.default for one in inspect.signature(kind).parameters.values()}
    return {
        name: Key(name, _in_a_file(name, types.get(name, object)), default)
        for name, default in defaults.items()
        if name not in _NEVER
    }


def _in_a_file(name: str, kind: Any) -> Any:
    return GroupName if kind == DiscoveryGroup | None else _IN_A_FILE.get(name, kind)


def _name(field: attrs.Attribute[Any]) -> str:
    return field.alias or field.name


def _default(field: attrs.Attribute[Any]) -> object:
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return default.factory()
    return inspect.Parameter.empty if default is attrs.NOTHING else default


def _types(kind: type[Any]) -> dict[str, Any]:
    if attrs.has(kind):
        attrs.resolve_types(kind)
        return {_name(field): field.type for field in attrs.fields(kind)}
    constructor = kind.__init__
    handed_on = getattr(constructor, "settings_class", None)
    types = _types(handed_on) if handed_on is not None else {}
    return {**types, **typing.get_type_hints(constructor)}


def tables() -> dict[str, type[Any]]:
    """All tables that a file may have, by name; the broker's own table has no name."""
    found: dict[str, type[Any]] = {"": Broker}
    waiting: list[tuple[str, type[Any]]] = [("", Broker)]
    for service, kind in SERVICES.items():
        found[f'[[services]] with kind = "{service}"'] = kind
    for name, endpoint in ENDPOINTS.items():
        found[f"[services.endpoint.{name}]"] = endpoint
    found["[services.pool]"] = PoolTable
    for name, policy in POLICIES.items():
        found[f'[ha] with policy = "{name}"'] = policy
    found["[ha.scale_down]"] = ScaleDown
    for name, quorum in QUORUMS.items():
        found[f'[ha.quorum] with kind = "{name}"'] = quorum
    found["[ha.quorum.auth]"] = AuthTable
    found["[quorum]"] = QuorumNode
    while waiting:
        path, kind = waiting.pop(0)
        for key in keys_of(kind).values():
            for name, inner in _inner(f"{path}.{key.name}" if path else key.name, key.type):
                found[f"[{name}]"] = inner
                waiting.append((name, inner))
    return found


def _inner(name: str, kind: Any) -> list[tuple[str, type[Any]]]:
    if is_table(kind):
        return [(name, kind)]
    parts = typing.get_args(kind)
    if is_class(kind, Mapping):
        return _inner(f"{name}.NAME", parts[1])
    if is_class(kind, Sequence):
        name = f"[{name}]"
    return [found for part in parts for found in _inner(name, part)]


def is_class(kind: Any, base: type[Any]) -> bool:
    """Whether values of this type are several: a list of something, a mapping from names to something."""
    origin = typing.get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, base)
