"""The settings of a client: one frozen record, validated when it is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypedDict

import attrs

from meshq import limits
from meshq.abc import BalancerPolicy
from meshq.discovery import NODES_MAX
from meshq.errors import SettingsError
from meshq.lb import policy_of
from meshq.settings import TLS, Secret, SSLContext, check_tls, check_user, in_range, is_bool

_FOREVER = math.inf
#: A TTL without an end, as it crosses the wire: a year.
TTL_MS_MAX = 365 * 24 * 3_600_000


def _attempts(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    good = type(value) is int and value >= 0
    if not good and not (type(value) is float and value == math.inf):
        raise SettingsError(attribute.name, value, "a whole number from 0, or math.inf")


def _at_least_one(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    _attempts(instance, attribute, value)
    if value == 0:
        raise SettingsError(attribute.name, value, "a whole number from 1, or math.inf")


def _window(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    low, high = limits.CONFIRMATION_WINDOW_BYTES_MIN, limits.GIB
    if not (type(value) is int and low <= value <= high) and not (type(value) is float and value == math.inf):
        raise SettingsError(attribute.name, value, f"a whole number from {low} to {high}, or math.inf for no window")


def _label(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not str or not value.isprintable() or len(value) > 200):
        raise SettingsError(attribute.name, value, "up to 200 printable characters, or None")


def _wait_for(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not int or not 0 < value <= NODES_MAX):
        raise SettingsError(attribute.name, value, f"a whole number of brokers from 1 to {NODES_MAX}, or None")


def _policy(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        policy_of(attribute.name, value)


def _secret(value: str | Secret | None) -> Secret | None:
    # From here on it is not shown.
    return None if value is None else Secret(value)


def _user(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        check_user(attribute.name, value)


def _tls(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_tls(attribute.name, value)
    if type(value) is TLS and value.client_certificates != "none":
        raise SettingsError(attribute.name, value, "TLS without client_certificates, which a broker asks for")


class ClientOptions(TypedDict, total=False):
    """The keywords of ``ClientSettings``, for functions that hand them on."""

    user: str | None
    password: str | Secret | None
    client_id: str | None
    tls: TLS | SSLContext | None
    insecure: bool
    load_balancing: str | type[BalancerPolicy] | BalancerPolicy | None
    use_topology: bool
    initial_wait_timeout: float
    initial_wait_for: int | None
    initial_connect_attempts: float
    reconnect_attempts: float
    retry_interval: float
    retry_interval_multiplier: float
    max_retry_interval: float
    call_timeout: float
    call_failover_timeout: float
    connection_ttl: float
    check_period: float
    confirmation_window: float
    min_large_message_size: int
    resend: bool


@attrs.frozen(kw_only=True)
class ClientSettings:
    """The settings of a client: connecting, waiting, reconnecting.  Times are seconds, sizes bytes.

    ``user`` and ``password``: who the client is; both or neither.  ``tls``: ``TLS(...)`` or an ``ssl.SSLContext`` for
    ``tls://`` URLs; None believes whom the system believes.
    ``client_id``: a label for logs, not unique.  ``insecure``: plaintext to other machines is allowed.
    ``load_balancing``: the policy by which a factory's connections are spread over the nodes: an object, a class or a
    name (``"round_robin"`` unless given, ``"random"``, ``"random_sticky"``, ``"first_element"``, ``"module:Class"``).
    ``initial_wait_timeout``: of a client that discovers brokers, the seconds from the making of its factory to its
    first connection; ``initial_wait_for``: so many known brokers end that wait.
    ``initial_connect_attempts``, ``reconnect_attempts``: rounds over all targets before giving up;
    ``retry_interval`` is waited before the second round and grows by ``retry_interval_multiplier`` up to
    ``max_retry_interval``.  ``call_timeout`` bounds the wait for an answer, ``call_failover_timeout`` the wait for
    a connection.  ``connection_ttl``: how long a session outlives its connection, and how long a silent connection
    is believed in; ``check_period``: how often at least that is looked at.  ``confirmation_window``: bytes of
    frames in flight, which are kept until the broker says that they have arrived, and sent again when the session is
    resumed; ``math.inf``: nothing is kept, and a session that loses its connection is made anew.
    ``min_large_message_size``: bytes of a body above which ``send`` streams it, and the broker keeps it in a file of
    its own.  ``resend``: whether unconfirmed sends are repeated after a failover.  ``use_topology``: a client
    goes to the nodes of which it was told, too, and to those of its URL when none of these answers; False: to those of
    its URL only.  Of a client in its broker's process it has no effect.
    """

    user: str | None = attrs.field(default=None, validator=_user)
    password: Secret | None = attrs.field(default=None, converter=_secret)
    client_id: str | None = attrs.field(default=None, validator=_label)
    tls: object = attrs.field(default=None, validator=_tls)
    insecure: bool = attrs.field(default=False, validator=is_bool)
    load_balancing: str | type[BalancerPolicy] | BalancerPolicy | None = attrs.field(default=None, validator=_policy)
    use_topology: bool = attrs.field(default=True, validator=is_bool)
    initial_wait_timeout: float = attrs.field(default=10, validator=in_range(0, _FOREVER))
    initial_wait_for: int | None = attrs.field(default=None, validator=_wait_for)
    initial_connect_attempts: float = attrs.field(default=1, validator=_at_least_one)
    reconnect_attempts: float = attrs.field(default=_FOREVER, validator=_attempts)
    retry_interval: float = attrs.field(default=0.1, validator=in_range(0.001, 86_400))
    retry_interval_multiplier: float = attrs.field(default=2.0, validator=in_range(1, 100))
    max_retry_interval: float = attrs.field(default=2.0, validator=in_range(0.001, 86_400))
    call_timeout: float = attrs.field(default=30, validator=in_range(0.001, _FOREVER))
    call_failover_timeout: float = attrs.field(default=30, validator=in_range(0.001, _FOREVER))
    connection_ttl: float = attrs.field(default=60, validator=in_range(0.1, _FOREVER))
    check_period: float = attrs.field(default=30, validator=in_range(0.01, _FOREVER))
    confirmation_window: float = attrs.field(default=limits.CONFIRMATION_WINDOW_BYTES, validator=_window)
    min_large_message_size: int = attrs.field(
        default=limits.MIN_LARGE_MESSAGE_BYTES,
        validator=in_range(limits.KIB, limits.MESSAGE_BYTES_MAX, whole=True),
    )
    resend: bool = attrs.field(default=True, validator=is_bool)

    def __attrs_post_init__(self) -> None:
        if (self.user is None) is not (self.password is None):
            raise SettingsError("user", self.user, "a user with a password, or neither")

    @property
    def window_bytes(self) -> int:
        """The confirmation window as it crosses the wire; 0: none."""
        return 0 if self.confirmation_window == math.inf else int(self.confirmation_window)

    @property
    def ttl_ms(self) -> int:
        """The TTL as it crosses the wire."""
        return int(min(self.connection_ttl * 1000, TTL_MS_MAX))

    @classmethod
    def build(cls, given: Mapping[str, Any]) -> ClientSettings:
        """Settings from names and values.

        Raises:
            SettingsError: a name isn't known (the nearest one is named), or a value isn't allowed.
        """
        known = [field.name for field in attrs.fields(cls)]
        for name in given:
            if name not in known:
                raise unknown_key(name, known)
        return cls(**given)


def unknown_key(name: str, known: list[str]) -> SettingsError:
    """Make the error for an unknown setting, without its value, which may be a mistyped password."""
    # Imported after a typing error only.
    from difflib import get_close_matches

    nearest = get_close_matches(name, known, n=1, cutoff=0.0)
    return SettingsError(name, "***", f"a known setting; the nearest one is {nearest[0]!r}")
