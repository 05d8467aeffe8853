"""The settings of a broker, checked when it is built."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Required, TypedDict, TypeVar, cast

import attrs

from meshq import limits
from meshq.abc import Controllable, Env, HAPolicy, Service
from meshq.address import check_name, check_place
from meshq.directories import StoreDirectories
from meshq.discovery import AcceptorGroup, BroadcastGroup, acceptor_groups
from meshq.errors import NotFoundError, SettingsError, UsageError
from meshq.ha import (
    Colocated,
    LiveOnly,
    ReplicationBackup,
    ReplicationPrimary,
    ScaleDown,
    SharedStoreBackup,
    SharedStorePrimary,
)
from meshq.ha.colocated import check_first_place, check_own_ports
from meshq.ids import IDENTITY_BYTES
from meshq.settings import (
    TLS,
    Acceptor,
    AddressSettings,
    JournalSettings,
    Secret,
    Security,
    check_address_settings,
    is_bool,
)

if TYPE_CHECKING:
    from meshq.cluster import ClusterConnection

T = TypeVar("T")

#: The least memory that a broker can work in: a session's credit and one large message.
MEMORY_BYTES_MIN = 1 * limits.MIB


def order_in(policy: HAPolicy | None) -> ScaleDown | None:
    """Return the order of a policy to hand over, at a stop or in place of a takeover; None: there is none."""
    return policy.scale_down if isinstance(policy, LiveOnly | SharedStoreBackup | ReplicationBackup) else None


def _several(setting: str, value: Sequence[T]) -> Sequence[T]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise SettingsError(setting, value, "a list or tuple")
    return value


def _directory(value: str | os.PathLike[str] | None) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if type(path) is not str or not path or "\0" in path:
        raise SettingsError("data_dir", value, "a directory, or None for a broker in memory only")
    return path


def _connectors(value: Mapping[str, str] | None) -> dict[str, str]:
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
    services = _with_needed(_several("services", value))
    for service in services:
        # An operator finds a service by its name, and queues of a service are named after it.
        if (service.kind, service.name) in found:
            raise SettingsError("services", service, f"different names for services of the kind {service.kind!r}")
        found[service.kind, service.name] = None
        if isinstance(service, Controllable):
            # An operator who pauses a service over a connection says the name alone.
            if service.name in controllable:
                raise SettingsError("services", service, "different names for services that can be paused")
            controllable[service.name] = None
    for service in services:
        _check_place(service, services)
    return services


def _check_place(service: Service, services: Sequence[Service]) -> None:
    """Check that no other broadcast group announces the broker at the place of a service, with the same secret."""
    if not isinstance(service, BroadcastGroup):
        return
    for other in services:
        if isinstance(other, BroadcastGroup) and other is not service:
            one, two = service.settings, other.settings
            if (one.endpoint, one.secret) == (two.endpoint, two.secret):
                # Each numbers its announcements, so that who listens would take those of one for repeats.
                allowed = f"one group for all connectors that are announced at a place, as {other!r} is there, too"
                raise SettingsError("services", service, allowed)


def _with_needed(given: Sequence[Service]) -> tuple[Service, ...]:
    """Return the services, and before each of them the services that it needs, each once."""
    for service in given:
        if not isinstance(service, Service):
            raise SettingsError("services", service, "services, such as ClusterConnection(...)")
    listed = set(map(id, given))
    needed = {id(one): one for service in given for one in service.needs if id(one) not in listed}
    return (*needed.values(), *given)


def _peers(services: Sequence[Service]) -> dict[str, Secret]:
    """Collect the names and passwords of peers; services may share a name, but not with different passwords."""
    found: dict[str, Secret] = {}
    for service in services:
        for user, password in service.credentials.items():
            if found.setdefault(user, password) != password:
                raise SettingsError("services", service, f"one password for the cluster user {user!r}")
    return found


def _acceptor(value: str | Acceptor) -> Acceptor:
    acceptor = Acceptor(value) if type(value) is str else value
    if type(acceptor) is not Acceptor:
        raise SettingsError("acceptors", value, "URLs and Acceptor objects")
    return acceptor


def _acceptors(value: Sequence[str | Acceptor]) -> tuple[Acceptor, ...]:
    return tuple(map(_acceptor, _several("acceptors", value)))


def _queues(value: Sequence[str]) -> tuple[str, ...]:
    return tuple(check_place("queues", queue) for queue in _several("queues", value))


def _journal(value: JournalSettings | None) -> JournalSettings:
    if value is not None and type(value) is not JournalSettings:
        # Whatever it is, a key may be in it.
        raise SettingsError("journal", "***", "JournalSettings, or None")
    return value or JournalSettings()


def dialed_url(acceptor: Acceptor, bound: str = "") -> str:
    """Return the URL by which an acceptor is dialed; ``bound``: where the acceptor listens."""
    # Plaintext beyond this machine is served because the acceptor has allowed it.
    plain = acceptor.endpoint.scheme == "tcp" and not acceptor.endpoint.loopback
    return f"{bound or attrs.evolve(acceptor.endpoint, options=())}{'?insecure=true' if plain else ''}"


def _asks_for_certificates(acceptor: Acceptor) -> bool:
    if isinstance(acceptor.tls, TLS):
        return acceptor.tls.client_certificates != "none"
    # A context of the program's own; 0 is that nobody is asked.
    return bool(getattr(acceptor.tls, "verify_mode", 0))


def _name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if len(check_name("name", value)) > limits.NODE_NAME_CHARACTERS_MAX:
        raise SettingsError("name", value[:32] + "…", f"at most {limits.NODE_NAME_CHARACTERS_MAX} characters")


def _directories(value: StoreDirectories | None) -> StoreDirectories:
    if value is not None and type(value) is not StoreDirectories:
        raise SettingsError("directories", value, "StoreDirectories of a broker that has a data_dir, or None")
    return value or StoreDirectories()


def _policy(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not isinstance(value, HAPolicy):
        allowed = "a policy, such as LiveOnly(scale_down=ScaleDown()), or None: active as soon as the broker starts"
        raise SettingsError("ha", value, allowed)
    if value is not None and type(getattr(value, "wait_for_activation", None)) is not bool:
        raise SettingsError("ha", value, "a policy whose wait_for_activation is True or False")


def _security(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and type(value) is not Security:
        # Whatever it is, a password may be in it.
        raise SettingsError("security", "***", "Security(users={...}), or None")


def _node_id(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not bytes or len(value) != IDENTITY_BYTES):
        raise SettingsError("node_id", value, f"{IDENTITY_BYTES} bytes")


def _memory_limit(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not int or value < MEMORY_BYTES_MIN):
        raise SettingsError("memory_limit", value, f"a number of bytes, {MEMORY_BYTES_MIN} at least, or None")


def _stop_timeout(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) not in (int, float) or not 0 <= value <= math.inf:
        raise SettingsError("stop_timeout", value, "a number of seconds, 0 or more")


def _transaction_timeout(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) not in (int, float) or not 0 < value <= limits.TIME_S_MAX:
        raise SettingsError("transaction_timeout", value, f"seconds above 0, at most {limits.TIME_S_MAX}")


def _session_ttl(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    low, high = limits.SESSION_TTL_S_MIN, limits.SESSION_TTL_S_MAX
    if type(value) not in (int, float) or not low <= value <= high:
        raise SettingsError("max_session_ttl", value, f"seconds from {low} to {high}")


def _sessions_per_user(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= limits.SESSIONS_MAX):
        allowed = f"a whole number from 1 to {limits.SESSIONS_MAX}, or None"
        raise SettingsError("max_sessions_per_user", value, allowed)


class BrokerOptions(TypedDict, total=False):
    """The keywords of ``Broker``, for functions that hand them on."""

    data_dir: Required[str | os.PathLike[str] | None]
    journal: JournalSettings | None
    directories: StoreDirectories | None
    acceptors: Sequence[str | Acceptor]
    connectors: Mapping[str, str] | None
    queues: Sequence[str]
    address_settings: dict[str, AddressSettings] | None
    security: Security | None
    services: Sequence[Service]
    ha: HAPolicy | None
    node_id: bytes | None
    memory_limit: int | None
    stop_timeout: float
    transaction_timeout: float
    max_session_ttl: float
    max_sessions_per_user: int | None
    advisory_support: bool
    env: Env | None


@attrs.frozen(kw_only=True)
class BrokerSettings:
    """The settings of a ``Broker``, checked when they are built; ``Broker`` says what each means when left out.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    name: str = attrs.field(validator=_name)
    data_dir: str | None = attrs.field(converter=_directory)
    journal: JournalSettings = attrs.field(converter=_journal)
    directories: StoreDirectories = attrs.field(converter=_directories)
    acceptors: tuple[Acceptor, ...] = attrs.field(converter=_acceptors)
    connectors: dict[str, str] = attrs.field(converter=_connectors)
    queues: tuple[str, ...] = attrs.field(converter=_queues)
    address_settings: dict[str, AddressSettings] = attrs.field(converter=check_address_settings)
    security: Security | None = attrs.field(validator=_security)
    services: tuple[Service, ...] = attrs.field(converter=_services)
    #: When the node is active; None: as soon as the broker starts, and until the broker stops.
    ha: HAPolicy | None = attrs.field(validator=_policy)
    node_id: bytes | None = attrs.field(validator=_node_id)
    memory_limit: int | None = attrs.field(validator=_memory_limit)
    stop_timeout: float = attrs.field(validator=_stop_timeout)
    transaction_timeout: float = attrs.field(validator=_transaction_timeout)
    max_session_ttl: float = attrs.field(validator=_session_ttl)
    max_sessions_per_user: int | None = attrs.field(validator=_sessions_per_user)
    advisory_support: bool = attrs.field(validator=is_bool)
    #: Names and passwords of the nodes that may connect as peers.
    peers: dict[str, Secret] = attrs.field(init=False)

    @peers.default
    def _peers_of_services(self) -> dict[str, Secret]:
        return _peers(self.services)

    def __attrs_post_init__(self) -> None:
        self._announce_acceptors()
        self._hear_targets()
        if self.data_dir is None and self.directories != StoreDirectories():
            allowed = "StoreDirectories of a broker that has a data_dir, or None"
            raise SettingsError("directories", self.directories, allowed)
        if self.security is None:
            for acceptor in self.acceptors:
                if not acceptor.endpoint.loopback and not acceptor.insecure:
                    raise SettingsError("acceptor", acceptor.url, "a loopback host, or security=, or insecure=True")
        elif self.security.certificates and not any(map(_asks_for_certificates, self.acceptors)):
            allowed = "with an acceptor that asks for them: TLS(client_certificates='optional' or 'required')"
            raise SettingsError("certificates", self.security.certificates, allowed)
        self._check_pair()
        self._check_scale_down()
        self._check_redirects()
        loopback = all(acceptor.endpoint.loopback for acceptor in self.acceptors)
        for service in self.services:
            service.check_exposure(loopback=loopback)
            service.check_acceptors(self.dialed())
            service.check_services(self.services)

    def _announce_acceptors(self) -> None:
        """Add the services that announce acceptors, unless an earlier version of these settings has them."""
        if not any(isinstance(service, AcceptorGroup) for service in self.services):
            object.__setattr__(self, "services", (*self.services, *acceptor_groups(self.acceptors)))

    @property
    def policy(self) -> HAPolicy | None:
        """The policy by which the node takes turns; None: it is active from the start to the stop."""
        return None if isinstance(self.ha, LiveOnly) else self.ha

    def _hear_targets(self) -> None:
        """Add the discovery group that hears of the nodes which may take over, unless it is among the services."""
        group = self.scale_down.discovery if self.scale_down is not None else None
        if group is not None and all(one is not group for one in self.services):
            object.__setattr__(self, "services", _services((group, *self.services)))

    @property
    def scale_down(self) -> ScaleDown | None:
        """The order to hand over, at a stop or in place of a takeover; None: there is none."""
        return order_in(self.ha)

    @property
    def role_policy(self) -> HAPolicy | None:
        """The policy by which the node itself takes part in a pair, also where it runs the backups of others."""
        return self.ha.primary if isinstance(self.ha, Colocated) else self.ha

    @property
    def takeover(self) -> ScaleDown | None:
        """The order to hand the messages of a lost node over; None: this node serves when it takes over."""
        order = None if isinstance(self.ha, LiveOnly) else self.scale_down
        return order if order is not None and order.enabled else None

    def _check_pair(self) -> None:
        """Check the settings that the policies of a pair need."""
        policy = self.role_policy
        replicates = isinstance(policy, ReplicationPrimary | ReplicationBackup)
        if not (replicates or isinstance(policy, SharedStorePrimary | SharedStoreBackup)):
            return
        if self.data_dir is None:
            whose = "a data_dir of its own" if replicates else "the data_dir that its nodes share"
            raise SettingsError("ha", self.ha, f"for a broker with {whose}")
        if self.directories != StoreDirectories():
            allowed = "None with a shared store: a part that lies elsewhere can't be kept from a former owner"
            if replicates:
                allowed = "None with replication: a copy of the other node's store takes the place of all parts"
            raise SettingsError("directories", self.directories, allowed)
        if all(one.kind != "cluster_connection" for one in self.services):
            raise SettingsError("ha", self.ha, "with a ClusterConnection in services: a pair is found in its cluster")
        if isinstance(policy, ReplicationPrimary | ReplicationBackup):
            self._check_replication(policy)
        if isinstance(self.ha, Colocated):
            self._check_colocated(self.ha)

    def _check_colocated(self, policy: Colocated) -> None:
        """Check the settings that colocated backups need."""
        wrong = [name for name in policy.excludes if name not in self.connectors]
        if wrong:
            known = ", ".join(sorted(self.connectors)) or "none"
            raise SettingsError("excludes", wrong[0], f"connectors of the broker: {known}")
        clusters = [cast("ClusterConnection", one) for one in self.services if one.kind == "cluster_connection"]
        own = [one.settings.connector for one in clusters if one.settings.connector in policy.excludes]
        if own:
            allowed = "not the connector of a cluster connection: others would look for a backup where its host is"
            raise SettingsError("excludes", own[0], allowed)
        # Before anything is on a disk; of the spare places only those are used where nobody listens.
        own = [str(attrs.evolve(one.endpoint, options=())) for one in self.acceptors]
        check_own_ports(own, policy.backup_port_offset, range(1, policy.max_backups + 1))
        if policy.max_backups:
            check_first_place(own, policy.backup_port_offset)
        names = [one.name for one in clusters]
        backup = policy.backup
        if isinstance(backup, ReplicationBackup) and backup.cluster_name not in (None, *names):
            allowed = f"one of the broker's cluster connections: {', '.join(names)}"
            raise SettingsError("cluster_name", backup.cluster_name, allowed)
        if policy.request_backup and not policy.replicates and not (self.data_dir or "").startswith("/"):
            allowed = "an absolute path with request_backup: another process opens it, too"
            raise SettingsError("data_dir", self.data_dir, allowed)

    def _check_replication(self, policy: ReplicationPrimary | ReplicationBackup) -> None:
        """Check the way to the other node of a pair by replication."""
        clusters = [one for one in self.services if one.kind == "cluster_connection"]
        if policy.cluster_name not in (None, *(one.name for one in clusters)):
            allowed = f"one of the broker's cluster connections: {', '.join(one.name for one in clusters)}"
            raise SettingsError("cluster_name", policy.cluster_name, allowed)
        found = next(one for one in clusters if policy.cluster_name in (None, one.name))
        asks = isinstance(policy, ReplicationBackup) or policy.check_for_live_server
        if asks and not cast("ClusterConnection", found).settings.static_connectors:
            allowed = "those of the other node: a pair by replication finds itself by them in this version"
            raise SettingsError("static_connectors", (), allowed)

    def _check_scale_down(self) -> None:
        order = self.scale_down
        if order is None:
            return
        clusters = [one.name for one in self.services if one.kind == "cluster_connection"]
        if order.cluster_name not in (None, *clusters):
            allowed = f"one of the broker's cluster connections: {', '.join(clusters) or 'none'}"
            raise SettingsError("cluster_name", order.cluster_name, allowed)
        for name in order.connectors:
            if "://" not in name and name not in self.connectors:
                known = ", ".join(sorted(self.connectors)) or "none"
                raise SettingsError("connectors", name, f"URLs, or connectors of the broker: {known}")

    def _check_redirects(self) -> None:
        """Check that the balancer of each acceptor that has one is among the services."""
        known = [one.name for one in self.services if one.kind == "broker_balancer"]
        for acceptor in self.acceptors:
            if acceptor.redirect_to not in (None, *known):
                allowed = f"one of the broker's balancers: {', '.join(map(repr, known)) or 'none'}"
                raise SettingsError("redirect_to", acceptor.redirect_to, allowed)

    def service(self, name: str, kind: str | None) -> Service:
        """Return the service of this name.

        Raises:
            NotFoundError: there is no such service.
            UsageError: services of several kinds have this name, and ``kind`` is None.
        """
        known = [one for one in self.services if kind in (None, one.kind)]
        found = [one for one in known if one.name == name]
        if not found:
            what = "service" if kind is None else kind.replace("_", " ")
            names = ", ".join(repr(one.name) for one in known) or "none"
            raise NotFoundError(f"the broker {self.name!r} has no {what} {name!r}; known: {names}")
        if len(found) > 1:
            kinds = " or ".join(repr(one.kind) for one in found)
            raise UsageError(f"the broker {self.name!r} has several services {name!r}: say kind={kinds}")
        return found[0]

    def dialed(self, bound: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the URLs by which the acceptors are dialed; ``bound``: where they listen, once they do."""
        return tuple(map(dialed_url, self.acceptors, chain(bound, repeat(""))))
