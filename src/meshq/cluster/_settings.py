"""The settings of cluster connections: names, defaults and allowed values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import attrs

from meshq import limits
from meshq.abc import Env, NodeControl
from meshq.address import check_name
from meshq.bridge import LinkOptions, LinkSettings
from meshq.client import ClientFactory, factory_of, shown_url
from meshq.discovery import DiscoveryGroup, announced_connector
from meshq.errors import SettingsError
from meshq.settings import TLS, Secret, SSLContext, check_tls, check_user, in_range, is_bool, one_of

DEFAULT_USER: Final = "ACTIVEMQ.CLUSTER.ADMIN.USER"
DEFAULT_PASSWORD: Final = "CHANGE ME!!"
#: How messages are shared with other nodes: not at all, with all of them, or with those that have consumers.
LoadBalancing = Literal["off", "strict", "on_demand", "off_with_redistribution"]


#: The most links between a node and a queue that it sends to: each node on the way holds and passes on each message.
HOPS_MAX: Final = 16
#: The most announcements of a node on one link: each has all linked nodes compare what they know.
ANNOUNCEMENTS_MAX: Final = 1_000


def _name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_name(attribute.name, value)


def _name_or_none(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        check_name(attribute.name, value)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SettingsError("static_connectors", value, "a list of connectors' names, or URLs")
    return tuple(value)


def _all_names(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    for name in value:
        check_name(attribute.name, name)


def _discovery(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not isinstance(value, DiscoveryGroup):
        raise SettingsError(attribute.name, value, "one DiscoveryGroup, or None")


def _prefixes(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not str:
        raise SettingsError(
            attribute.name, value, "prefixes of addresses with commas between them, '!' before one to exclude"
        )
    included, excluded = _prefixes_of(value)
    if all(one.startswith(excluded) for one in included):
        raise SettingsError(attribute.name, value, "a list that leaves some addresses: '!' excludes all of these")


def _prefixes_of(address: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    items = [item.strip() for item in address.split(",") if item.strip()]
    excluded = tuple(item[1:].strip() for item in items if item.startswith("!"))
    return tuple(item for item in items if not item.startswith("!")) or ("",), excluded


def load_balancing_of(forward_when_no_consumers: object, settings: ClusterOptions) -> LoadBalancing:
    """Return the mode that the older setting means, with a ``DeprecationWarning``.

    Raises:
        SettingsError: the older setting is neither True nor False, or ``load_balancing`` is given, too.
    """
    if type(forward_when_no_consumers) is not bool:
        raise SettingsError("forward_when_no_consumers", forward_when_no_consumers, "True, False or None")
    meant: LoadBalancing = "strict" if forward_when_no_consumers else "on_demand"
    if "load_balancing" in settings:
        allowed = f"nothing beside load_balancing, of which it is the older name ({meant!r})"
        raise SettingsError("forward_when_no_consumers", forward_when_no_consumers, allowed)
    text = f"forward_when_no_consumers={forward_when_no_consumers} is the older name of load_balancing={meant!r}"
    # The line that makes the cluster connection.
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return meant


class ClusterOptions(LinkOptions, total=False):
    """The keywords of ``ClusterConnection`` beside its name, its connectors and who its nodes are."""

    allow_direct_connections_only: bool
    address: str
    load_balancing: LoadBalancing
    group_name: str | None
    max_hops: int
    min_large_message_size: int
    use_duplicate_detection: bool
    producer_window_size: float
    notification_interval: float
    notification_attempts: int
    group_timeout: float
    max_group_pins: int
    stuck_timeout: float


@attrs.frozen(kw_only=True)
class ClusterSettings(LinkSettings):
    """The settings of a ``ClusterConnection``.  Times are seconds, sizes bytes."""

    name: str = attrs.field(validator=_name)
    connector: str | None = attrs.field(default=None, validator=_name_or_none)
    discovery: DiscoveryGroup | None = attrs.field(default=None, validator=_discovery)
    static_connectors: tuple[str, ...] = attrs.field(default=(), converter=_names, validator=_all_names)
    allow_direct_connections_only: bool = attrs.field(default=False, validator=is_bool)
    address: str = attrs.field(default="", validator=_prefixes)
    load_balancing: LoadBalancing = attrs.field(default="on_demand", validator=one_of(get_args(LoadBalancing)))
    group_name: str | None = attrs.field(default=None, validator=_name_or_none)
    max_hops: int = attrs.field(default=1, validator=in_range(1, HOPS_MAX, whole=True))
    min_large_message_size: int = attrs.field(
        default=limits.MIN_LARGE_MESSAGE_BYTES,
        validator=in_range(limits.KIB, limits.MESSAGE_BYTES_MAX, whole=True),
    )
    call_failover_timeout: float = attrs.field(default=math.inf, validator=in_range(0.001, math.inf))
    use_duplicate_detection: bool = attrs.field(default=True, validator=is_bool)
    producer_window_size: float = attrs.field(default=math.inf, validator=in_range(1, math.inf, whole=True))
    notification_interval: float = attrs.field(default=1.0, validator=in_range(0.001, 86_400))
    notification_attempts: int = attrs.field(default=2, validator=in_range(0, ANNOUNCEMENTS_MAX, whole=True))
    #: For so long a pin of a message group is kept that nobody uses, in seconds.
    group_timeout: float = attrs.field(default=math.inf, validator=in_range(0.1, math.inf))
    #: Of more pins than that those are released early that were not used for longest.
    max_group_pins: int = attrs.field(default=65_536, validator=in_range(1, 2**24, whole=True))
    #: Messages that do not move for so long, although somebody wants them, are stuck.
    stuck_timeout: float = attrs.field(default=60.0, validator=in_range(0.1, math.inf))

    def __attrs_post_init__(self) -> None:
        if self.allow_direct_connections_only and self.discovery is not None:
            allowed = "False with discovery: other nodes than those of static_connectors are found"
            raise SettingsError("allow_direct_connections_only", True, allowed)

    def own_url(self, control: NodeControl) -> str:
        """The URL by which other nodes reach this node, or empty: that of the connector, or of the first acceptor."""
        if self.connector is not None:
            return control.connectors.get(self.connector, "")
        return next(iter(control.acceptors()), "")

    def takes(self, address: str) -> bool:
        """Whether messages to an address are shared: by literal prefix, and exclusion beats inclusion."""
        included, excluded = self.prefixes
        return address.startswith(included) and not address.startswith(excluded)

    @property
    def prefix(self) -> str:
        """The prefix of the names of the store-and-forward queues, which a node's id follows."""
        return f"$meshq.cluster.{self.name}."

    def leads(self, name: str) -> bool:
        """Whether a store-and-forward queue of this name is one of the cluster's."""
        # Another cluster's name may begin with this one's and a dot; a node's id has none.
        return name.startswith(self.prefix) and "." not in name.removeprefix(self.prefix)

    @property
    def gives_up(self) -> bool:
        """Whether the attempts to reach a node end."""
        return not (math.isinf(self.initial_connect_attempts) and math.isinf(self.reconnect_attempts))

    @property
    def prefixes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The prefixes of the addresses that are shared, and the prefixes of excluded ones."""
        return _prefixes_of(self.address)


def url_of(connectors: Mapping[str, str], name: str) -> str:
    """Return the URL for a connector's name, or the URL itself."""
    return name if "://" in name else connectors[name]


def wrong_connectors(
    settings: ClusterSettings, connectors: Mapping[str, str], loopback: Callable[[str, str], bool], *, default: bool
) -> list[SettingsError]:
    """Return the errors of the connectors: unknown names, URLs that can't be dialed, or the default password beyond
    loopback.

    ``loopback``: whether a URL, the value of a setting, leads to this machine; raises SettingsError if nobody can dial
    it.  ``default``: the password is the default.
    """
    known = ", ".join(sorted(connectors)) or "none"
    found = []
    own = settings.connector
    if own is not None and own not in connectors:
        found.append(SettingsError("connector", own, f"one of the broker's connectors: {known}"))
    elif own is not None and settings.discovery is not None:
        try:
            announced_connector(connectors[own])
        except SettingsError as error:
            found.append(error)
    for name in settings.static_connectors:
        if "://" not in name and name not in connectors:
            found.append(SettingsError("static_connectors", name, f"URLs, or connectors of the broker: {known}"))
    dialed = [name for name in settings.static_connectors if "://" in name or name in connectors]
    # Announced nodes are dialed as this node is, so its own connector says whether that may be.
    if own is not None and own in connectors and (default or settings.discovery is not None):
        dialed.insert(0, own)
    far: dict[str, None] = {}
    for name in dict.fromkeys(dialed):
        try:
            # Checked now: a link that can't be dialed must not be found out at the first message.
            url = url_of(connectors, name)
            if not loopback(url, "static_connectors" if url == name else f"connectors[{name!r}]"):
                far[url] = None
        except SettingsError as error:
            found.append(error)
    if default and far:
        urls = ", ".join(map(shown_url, far))
        found.append(SettingsError("password", "***", f"another one than the default, with {urls}"))
    return found


class NodeLogin:
    """The user and password of the nodes of a cluster, the same on all of them, and whom to believe on TLS links.

    Raises:
        SettingsError: one of them isn't allowed.
    """

    def __init__(
        self,
        user: str = DEFAULT_USER,
        password: str | Secret = DEFAULT_PASSWORD,
        tls: TLS | SSLContext | None = None,
    ) -> None:
        self._user = check_user("user", user)
        self._password = Secret(password)
        check_tls("tls", tls)
        self._tls = tls

    @property
    def default(self) -> bool:
        """Whether the user and password are the default ones, which are no secret."""
        return (self._user, self._password) == (DEFAULT_USER, Secret(DEFAULT_PASSWORD))

    @property
    def credentials(self) -> dict[str, Secret]:
        """The password by the name."""
        return {self._user: self._password}

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of a ``ClusterConnection`` with this login."""
        return {"user": self._user, "password": self._password, "tls": self._tls}

    def factory(self, url: str, setting: str, *, env: Env, **settings: Any) -> ClientFactory:
        """Make the client factory for a URL, the value of a setting.  Raises: SettingsError: nobody can dial it."""
        # What says whom to believe is for links that go over TLS.
        tls = self._tls if url.startswith("tls://") else None
        return factory_of(url, setting, env=env, user=self._user, password=self._password, tls=tls, **settings)
