"""The settings of pools and balancers: names, defaults and allowed values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import attrs

from meshq.abc import BalancerPolicy
from meshq.address import check_name
from meshq.discovery import DiscoveryGroup
from meshq.errors import SettingsError
from meshq.lb import TARGET_KEYS, KeyFilter, RoundRobin, policy_of
from meshq.settings import TLS, Secret, SSLContext, check_tls, check_user, in_range, is_bool

#: The most targets that a quorum may want.
QUORUM_MAX: Final = 1_000
#: Seconds for which a client may be kept waiting for a quorum.
QUORUM_TIMEOUT_S_MAX: Final = 60.0
#: The policy of a pool unless another one is given.
DEFAULT_POLICY: Final[BalancerPolicy] = RoundRobin()

#: What a balancer without a pool needs.
NO_POOL: Final = "a filter, where there is no pool: all would be refused"

Policy = str | type[BalancerPolicy] | BalancerPolicy


def _name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_name(attribute.name, value)


def _user(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value:
        check_user(attribute.name, value)
    elif value is not None and value != "":
        raise SettingsError(attribute.name, value, "a user's name, an empty text for nobody's, or None")


def _secret(value: Any) -> Secret | None:
    return None if value is None else Secret(value)


def _tls(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_tls(attribute.name, value)


def _quorum(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not int or not 1 <= value <= QUORUM_MAX:
        raise SettingsError(attribute.name, value, f"a whole number from 1 to {QUORUM_MAX}")


def _connectors(value: Any) -> tuple[str, ...]:
    wrong = isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value
    if wrong or any(type(one) is not str or not one for one in value) or len(set(value)) < len(value):
        raise SettingsError("static_connectors", value, "a list of different names of connectors, or URLs")
    return tuple(value)


def _group(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, DiscoveryGroup):
        raise SettingsError(attribute.name, value, "a DiscoveryGroup")


@attrs.frozen(kw_only=True)
class Pool:
    """The settings that all pools have; ``StaticPool`` says what they are."""

    user: str | None = attrs.field(default=None, validator=_user)
    password: Secret | None = attrs.field(default=None, converter=_secret)
    tls: TLS | SSLContext | None = attrs.field(default=None, validator=_tls)
    insecure: bool = attrs.field(default=False, validator=is_bool)
    check_period: float = attrs.field(default=5.0, validator=in_range(0.01, 3_600))
    quorum_size: int = attrs.field(default=1, validator=_quorum)
    quorum_timeout: float = attrs.field(default=3.0, validator=in_range(0, QUORUM_TIMEOUT_S_MAX))
    local_target_enabled: bool = attrs.field(default=False, validator=is_bool)

    #: The key of a file that names the source.
    source: ClassVar[str] = ""

    def __attrs_post_init__(self) -> None:
        if bool(self.user) is not (self.password is not None):
            raise SettingsError("password", "***", "one with a user, and none without")


@attrs.frozen(kw_only=True)
class StaticPool(Pool):
    """The pool of connectors that a balancer names, in their order: names of the broker's connectors, or URLs.

    ``user``, ``password``, ``tls``: as whom targets are probed, and whom to believe; unless given, as a node of the
    broker's cluster connection, if there is one.  An empty ``user``: as nobody.  ``insecure``: also over plaintext to
    other machines.
    ``check_period``: seconds between two probes of a target.  ``quorum_size``: so many nodes have to be ready before
    one is given; ``quorum_timeout``: seconds for which a client waits for that.
    ``local_target_enabled``: the broker itself is a target, too.
    """

    static_connectors: tuple[str, ...] = attrs.field(converter=_connectors, kw_only=False)

    source: ClassVar[str] = "static_connectors"


@attrs.frozen(kw_only=True)
class ClusterPool(Pool):
    """The pool of the nodes of a cluster connection, by its name, as they come and go.

    The other settings are those of ``StaticPool``.
    """

    cluster_connection: str = attrs.field(validator=_name, kw_only=False)

    source: ClassVar[str] = "cluster_connection"


@attrs.frozen(kw_only=True)
class DiscoveryPool(Pool):
    """The pool of the nodes that announce themselves to a discovery group, which the broker then has, too.

    The other settings are those of ``StaticPool``.
    """

    discovery_group: DiscoveryGroup = attrs.field(validator=_group, kw_only=False)

    source: ClassVar[str] = "discovery_group"


def _pool(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not isinstance(value, StaticPool | ClusterPool | DiscoveryPool):
        raise SettingsError("pool", value, "StaticPool([...]), ClusterPool(NAME), DiscoveryPool(GROUP), or None")


def _key(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not str or value not in TARGET_KEYS:
        raise SettingsError(attribute.name, value, " or ".join(map(repr, TARGET_KEYS)))


def _key_filter(value: Any) -> KeyFilter | None:
    return None if value is None else KeyFilter("target_key_filter", value)


def _local_filter(value: Any) -> KeyFilter | None:
    return None if value is None else KeyFilter("local_target_filter", value)


def _policy(value: Any) -> BalancerPolicy | None:
    if isinstance(value, list | tuple):
        # A file that has the policy twice, as the example of the ActiveMQ documentation.
        if len(value) == 0 or any(one != value[0] for one in value):
            raise SettingsError("policy", value, "one policy")
        value = value[0]
    return None if value is None else policy_of("policy", value)


@attrs.frozen(kw_only=True)
class BalancerSettings:
    """The settings of a ``BrokerBalancer``, checked when they are built.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    name: str = attrs.field(validator=_name)
    target_key: str = attrs.field(default="source_ip", validator=_key)
    target_key_filter: KeyFilter | None = attrs.field(default=None, converter=_key_filter)
    local_target_filter: KeyFilter | None = attrs.field(default=None, converter=_local_filter)
    cache_timeout: float = attrs.field(default=math.inf, validator=in_range(0, math.inf))
    pool: StaticPool | ClusterPool | DiscoveryPool | None = attrs.field(default=None, validator=_pool)
    policy: BalancerPolicy | None = attrs.field(default=None, converter=_policy)

    def __attrs_post_init__(self) -> None:
        if self.pool is None and self.policy is DEFAULT_POLICY:
            object.__setattr__(self, "policy", None)
        if self.pool is not None and self.policy is None:
            raise SettingsError("policy", None, "a policy for the pool")
        if self.pool is None and self.policy is not None:
            raise SettingsError("pool", None, "a pool for the policy")
        if self.pool is None and self.local_target_filter is None:
            raise SettingsError("local_target_filter", None, f"{NO_POOL}; or give a pool")
