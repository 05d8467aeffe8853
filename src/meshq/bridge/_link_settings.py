"""The settings of links to other brokers: connecting, waiting, reconnecting; for bridges and clusters."""

from __future__ import annotations

import math
from typing import Any, TypedDict

import attrs

from meshq import limits
from meshq.errors import SettingsError
from meshq.settings import in_range


def _attempts(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value != math.inf and (type(value) is not int or value < 1):
        raise SettingsError(attribute.name, value, "a whole number from 1, or math.inf")


def _window(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    low, high = 4 * limits.KIB, limits.GIB
    if value != math.inf and (type(value) is not int or not low <= value <= high):
        raise SettingsError(attribute.name, value, f"a whole number from {low} to {high}, or math.inf")


class LinkOptions(TypedDict, total=False):
    """The keywords of ``LinkSettings``, for functions that hand them on."""

    check_period: float
    connection_ttl: float
    call_timeout: float
    call_failover_timeout: float
    retry_interval: float
    retry_interval_multiplier: float
    max_retry_interval: float
    initial_connect_attempts: float
    reconnect_attempts: float
    confirmation_window_size: float


@attrs.frozen(kw_only=True)
class LinkSettings:
    """Times are seconds, sizes bytes."""

    check_period: float = attrs.field(default=30, validator=in_range(0.01, math.inf))
    connection_ttl: float = attrs.field(default=60, validator=in_range(0.1, math.inf))
    call_timeout: float = attrs.field(default=30, validator=in_range(0.001, math.inf))
    call_failover_timeout: float = attrs.field(default=30, validator=in_range(0.001, math.inf))
    retry_interval: float = attrs.field(default=0.5, validator=in_range(0.001, 86_400))
    retry_interval_multiplier: float = attrs.field(default=1.0, validator=in_range(1, 100))
    max_retry_interval: float = attrs.field(default=2.0, validator=in_range(0.001, 86_400))
    initial_connect_attempts: float = attrs.field(default=math.inf, validator=_attempts)
    reconnect_attempts: float = attrs.field(default=math.inf, validator=_attempts)
    confirmation_window_size: float = attrs.field(default=limits.CONFIRMATION_WINDOW_BYTES, validator=_window)

    def retry_after(self, failures: int) -> float:
        """The time to wait after so many failures in a row, at least one."""
        longest = max(self.retry_interval, self.max_retry_interval)
        return min(longest, self.retry_interval * self.retry_interval_multiplier ** min(failures - 1, 64))

    def client(self) -> dict[str, Any]:
        """The settings of the connection to the other broker."""
        return {
            "initial_connect_attempts": self.initial_connect_attempts,
            "reconnect_attempts": self.reconnect_attempts,
            "retry_interval": self.retry_interval,
            "retry_interval_multiplier": self.retry_interval_multiplier,
            "max_retry_interval": self.max_retry_interval,
            "call_timeout": self.call_timeout,
            "call_failover_timeout": self.call_failover_timeout,
            "connection_ttl": self.connection_ttl,
            "check_period": self.check_period,
            "confirmation_window": self.confirmation_window_size,
        }
