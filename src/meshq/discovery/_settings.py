"""The settings of broadcast groups and discovery groups: names, defaults and allowed values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import attrs

from meshq.abc import BroadcastEndpoint
from meshq.address import check_name
from meshq.errors import SettingsError
from meshq.settings import Secret, in_range

#: The longest time between two announcements: what the datagram has room for is more.
PERIOD_S_MAX: Final = 86_400.0
#: A refresh timeout that is less than so many periods of a node lets the node come and go.
PERIODS_PER_REFRESH: Final = 2.0


def _name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_name(attribute.name, value)


def _endpoint(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, BroadcastEndpoint):
        raise SettingsError(attribute.name, value, "one endpoint, such as UDPMulticast(group, port)")


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
        raise SettingsError("connectors", value, "a list of one or more names of the broker's connectors")
    return tuple(value)


def _all_names(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    for name in value:
        check_name(attribute.name, name)
    if len(set(value)) < len(value):
        raise SettingsError(attribute.name, value, "different names")


def _secret(value: Any) -> Secret | None:
    if value is None or isinstance(value, Secret):
        return value
    if type(value) is not str or not value:
        raise SettingsError("secret", "***", "a text that is not empty, or None")
    return Secret(value)


@attrs.frozen(kw_only=True)
class BroadcastSettings:
    """The settings of a ``BroadcastGroup``.  Times are seconds."""

    name: str = attrs.field(validator=_name)
    endpoint: BroadcastEndpoint = attrs.field(validator=_endpoint)
    connectors: tuple[str, ...] = attrs.field(converter=_names, validator=_all_names)
    broadcast_period: float = attrs.field(default=2.0, validator=in_range(0.001, PERIOD_S_MAX))
    secret: Secret | None = attrs.field(default=None, converter=_secret)


@attrs.frozen(kw_only=True)
class DiscoverySettings:
    """The settings of a ``DiscoveryGroup``.  Times are seconds."""

    name: str = attrs.field(validator=_name)
    endpoint: BroadcastEndpoint = attrs.field(validator=_endpoint)
    refresh_timeout: float = attrs.field(default=10.0, validator=in_range(0.001, PERIOD_S_MAX))
    initial_wait_timeout: float = attrs.field(default=10.0, validator=in_range(0, math.inf))
    secret: Secret | None = attrs.field(default=None, converter=_secret)


def key_of(secret: Secret | None) -> bytes | None:
    """Return the key of signatures; None without a secret."""
    return None if secret is None else secret.reveal().encode()
