"""The settings of a broker, checked when it is built."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

import attrs

from meshq import limits
from meshq.abc import Controllable, HAPolicy, Service
from meshq.address import check_name, check_place
from meshq.directories import StoreDirectories
from meshq.errors import SettingsError
from meshq.ids import IDENTITY_BYTES
from meshq.settings import (
    TLS,
    Acceptor,
    AddressSettings,
    JournalSettings,
    Secret,
    Security,
    check_address_settings,
)

T = TypeVar("T")

#: The least memory that a broker can work in: a session's credit and one large message.
MEMORY_BYTES_MIN = 1 * limits.MIB


@attrs.frozen(kw_only=True)
class BrokerSettings:
    """The settings of a ``Broker``."""

    name: str
    data_dir: str | None
    journal: JournalSettings
    directories: StoreDirectories
    acceptors: tuple[Acceptor, ...]
    connectors: dict[str, str]
    services: tuple[Service, ...]
    #: When the node is active; None: as soon as the broker starts, and until the broker stops.
    ha: HAPolicy | None
    queues: tuple[str, ...]
    security: Security | None
    #: Names and passwords of the nodes that may connect as peers.
    peers: dict[str, Secret]
    address_settings: dict[str, AddressSettings]
    node_id: bytes | None
    memory_limit: int | None
    stop_timeout: float
    transaction_timeout: float
    max_session_ttl: float
    max_sessions_per_user: int | None


def check_settings(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None,
    journal: JournalSettings | None,
    directories: StoreDirectories | None = None,
    acceptors: Sequence[str | Acceptor],
    connectors: Mapping[str, str] | None = None,
    services: Sequence[Service] = (),
    ha: HAPolicy | None = None,
    queues: Sequence[str],
    address_settings: object,
    node_id: bytes | None,
    memory_limit: int | None,
    stop_timeout: float,
    transaction_timeout: float = limits.TRANSACTION_TIMEOUT_S,
    max_session_ttl: float = limits.SESSION_TTL_S,
    max_sessions_per_user: int | None = None,
    security: Security | None = None,
) -> BrokerSettings:
    """Check all settings of a broker.

    Raises:
        SettingsError: one of them isn't allowed.
    """
    if journal is not None and type(journal) is not JournalSettings:
        # Whatever it is, a key may be in it.
        raise SettingsError("journal", "***", "JournalSettings, or None")
    if directories is not None and (type(directories) is not StoreDirectories or data_dir is None):
        raise SettingsError("directories", directories, "StoreDirectories of a broker that has a data_dir, or None")
    if ha is not None and not isinstance(ha, HAPolicy):
        raise SettingsError("ha", ha, "a policy, or None for a node that is active as soon as the broker starts")
    if node_id is not None and (type(node_id) is not bytes or len(node_id) != IDENTITY_BYTES):
        raise SettingsError("node_id", node_id, f"{IDENTITY_BYTES} bytes")
    if memory_limit is not None and (type(memory_limit) is not int or memory_limit < MEMORY_BYTES_MIN):
        raise SettingsError("memory_limit", memory_limit, f"a number of bytes, {MEMORY_BYTES_MIN} at least, or None")
    if type(stop_timeout) not in (int, float) or not 0 <= stop_timeout <= math.inf:
        raise SettingsError("stop_timeout", stop_timeout, "a number of seconds, 0 or more")
    if type(transaction_timeout) not in (int, float) or not 0 < transaction_timeout <= limits.TIME_S_MAX:
        raise SettingsError("transaction_timeout", transaction_timeout, f"seconds above 0, at most {limits.TIME_S_MAX}")
    _check_sessions(max_session_ttl, max_sessions_per_user)
    if len(check_name("name", name)) > limits.NODE_NAME_CHARACTERS_MAX:
        raise SettingsError("name", name[:32] + "…", f"at most {limits.NODE_NAME_CHARACTERS_MAX} characters")
    if security is not None and type(security) is not Security:
        # Whatever it is, a password may be in it.
        raise SettingsError("security", "***", "Security(users={...}), or None")
    listening = tuple(_acceptor(acceptor, security) for acceptor in _several("acceptors", acceptors))
    if security is not None and security.certificates and not any(map(_asks_for_certificates, listening)):
        allowed = "with an acceptor that asks for them: TLS(client_certificates='optional' or 'required')"
        raise SettingsError("certificates", security.certificates, allowed)
    settings = BrokerSettings(
        name=name,
        data_dir=_directory(data_dir),
        journal=journal or JournalSettings(),
        directories=directories or StoreDirectories(),
        acceptors=listening,
        connectors=_connectors(connectors),
        services=_services(services),
        ha=ha,
        queues=tuple(check_place("queues", queue) for queue in _several("queues", queues)),
        security=security,
        peers=_peers(services),
        address_settings=check_address_settings(address_settings),
        node_id=node_id,
        memory_limit=memory_limit,
        stop_timeout=stop_timeout,
        transaction_timeout=transaction_timeout,
        max_session_ttl=max_session_ttl,
        max_sessions_per_user=max_sessions_per_user,
    )
    loopback = all(acceptor.endpoint.loopback for acceptor in settings.acceptors)
    for service in settings.services:
        service.check_exposure(loopback=loopback)
    return settings


def _check_sessions(ttl: object, per_user: object) -> None:
    low, high = limits.SESSION_TTL_S_MIN, limits.SESSION_TTL_S_MAX
    if type(ttl) not in (int, float) or not low <= ttl <= high:  # type: ignore[operator]
        raise SettingsError("max_session_ttl", ttl, f"seconds from {low} to {high}")
    if per_user is not None and (type(per_user) is not int or not 1 <= per_user <= limits.SESSIONS_MAX):
        allowed = f"a whole number from 1 to {limits.SESSIONS_MAX}, or None"
        raise SettingsError("max_sessions_per_user", per_user, allowed)


def _several(setting: str, value: Sequence[T]) -> Sequence[T]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise SettingsError(setting, value, "a list or tuple")
    return value


def _directory(value: object) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if type(path) is not str or not path or "\0" in path:
        raise SettingsError("data_dir", value, "a directory, or None for a broker in memory only")
    return path


def _connectors(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError("connectors", value, "a mapping from names to URLs")
    for name, url in value.items():
        check_name("connectors", name)
        if type(url) is not str or "://" not in url:
            raise SettingsError(f"connectors[{name!r}]", url, "a URL, such as tcp://HOST:PORT")
    return dict(value)


def _services(value: Sequence[Service]) -> tuple[Service, ...]:
    found: dict[tuple[str, str], None] = {}
    controllable: dict[str, None] = {}
    for service in _several("services", value):
        if not isinstance(service, Service):
            raise SettingsError("services", service, "services, such as ClusterConnection(...)")
        # An operator finds a service by its name, and queues of a service are named after it.
        if (service.kind, service.name) in found:
            raise SettingsError("services", service, f"different names for services of the kind {service.kind!r}")
        found[service.kind, service.name] = None
        if isinstance(service, Controllable):
            # An operator who pauses a service over a connection says the name alone.
            if service.name in controllable:
                raise SettingsError("services", service, "different names for services that can be paused")
            controllable[service.name] = None
    return tuple(value)


def _peers(services: Sequence[Service]) -> dict[str, Secret]:
    """Collect the names and passwords of peers; services may share a name, but not with different passwords."""
    found: dict[str, Secret] = {}
    for service in services:
        for user, password in service.credentials.items():
            if found.setdefault(user, password) != password:
                raise SettingsError("services", service, f"one password for the cluster user {user!r}")
    return found


def _acceptor(value: object, security: Security | None) -> Acceptor:
    acceptor = Acceptor(value) if type(value) is str else value
    if type(acceptor) is not Acceptor:
        raise SettingsError("acceptors", value, "URLs and Acceptor objects")
    if security is None and not acceptor.endpoint.loopback and not acceptor.insecure:
        raise SettingsError("acceptor", acceptor.url, "a loopback host, or security=, or insecure=True")
    return acceptor


def _asks_for_certificates(acceptor: Acceptor) -> bool:
    if isinstance(acceptor.tls, TLS):
        return acceptor.tls.client_certificates != "none"
    # A context of the program's own; 0 is that nobody is asked.
    return bool(getattr(acceptor.tls, "verify_mode", 0))
