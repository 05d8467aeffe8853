"""Client URLs: one target or a bracketed list of them, and options.

``tcp://host:port?call_timeout=5`` · ``inproc://name`` · ``(tcp://a:1,tcp://b:2)?reconnect_attempts=5``.
Options in snake_case are seconds; the camelCase spellings that other clients have taught are milliseconds, and -1
there means without end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import attrs

from meshq.client.settings._settings import unknown_key
from meshq.client.settings._url_format import ALLOWED, Url, shown
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

#: Schemes of later versions.
_TO_COME: Final = {
    "udp": "discovery",
    "discovery": "discovery",
    "fanout": "discovery",
    "static": "discovery",
    "multicast": "discovery",
    "zeroconf": "discovery",
}
_TRUE: Final = {"true": True, "false": False}


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise SettingsError(key, text, "a number") from None
    if math.isnan(value):
        raise SettingsError(key, text, "a number")
    return value


def _seconds(key: str, text: str) -> float:
    return _number(key, text)


def _milliseconds(key: str, text: str) -> float:
    value = _number(key, text)
    return math.inf if value == -1 else value / 1000


def _whole(key: str, text: str) -> float:
    value = _number(key, text)
    return value if math.isinf(value) or value != int(value) else int(value)


def _count(key: str, text: str) -> float:
    value = _whole(key, text)
    return math.inf if value == -1 else value


def _bool(key: str, text: str) -> bool:
    if text not in _TRUE:
        raise SettingsError(key, text, "true or false")
    return _TRUE[text]


def _text(key: str, text: str) -> str:
    return text


def _not_here(key: str, text: str) -> str:
    # URLs are printed, logged and kept in histories.
    raise SettingsError(key, "***", f"{key}= beside the URL, not in it")


def _policy(key: str, text: str) -> Any:
    raise SettingsError(key, text, "no name of a class, and no policy in this version (balancing to come)")


def _ha(key: str, text: str) -> Any:
    raise SettingsError(key, text, "not in this version (backups to come)")


Read = Callable[[str, str], Any]

#: Option → how its text is read.  Names are those of the settings.
SNAKE_CASE: Final[dict[str, Read]] = {
    "user": _text,
    "password": _not_here,
    "client_id": _text,
    "tls": _not_here,
    "insecure": _bool,
    "load_balancing": _text,
    "use_topology": _bool,
    "initial_wait_timeout": _seconds,
    "initial_wait_for": _text,
    "initial_connect_attempts": _whole,
    "reconnect_attempts": _whole,
    "retry_interval": _seconds,
    "retry_interval_multiplier": _number,
    "max_retry_interval": _seconds,
    "call_timeout": _seconds,
    "call_failover_timeout": _seconds,
    "connection_ttl": _seconds,
    "check_period": _seconds,
    "confirmation_window": _whole,
    "min_large_message_size": _whole,
    "resend": _bool,
}
#: The other spelling → the setting it means, and how its text is read.
CAMEL_CASE: Final[dict[str, tuple[str, Read]]] = {
    "user": ("user", _text),
    "password": ("password", _not_here),
    "clientID": ("client_id", _text),
    "useTopologyForLoadBalancing": ("use_topology", _bool),
    "initialWaitTimeout": ("initial_wait_timeout", _milliseconds),
    "initialConnectAttempts": ("initial_connect_attempts", _count),
    "connectionLoadBalancingPolicyClassName": ("load_balancing", _policy),
    "loadBalancingPolicyClassName": ("load_balancing", _policy),
    "ha": ("ha", _ha),
    "reconnectAttempts": ("reconnect_attempts", _count),
    "retryInterval": ("retry_interval", _milliseconds),
    "retryIntervalMultiplier": ("retry_interval_multiplier", _number),
    "maxRetryInterval": ("max_retry_interval", _milliseconds),
    "callTimeout": ("call_timeout", _milliseconds),
    "callFailoverTimeout": ("call_failover_timeout", _milliseconds),
    "connectionTTL": ("connection_ttl", _milliseconds),
    "clientFailureCheckPeriod": ("check_period", _milliseconds),
    "confirmationWindowSize": ("confirmation_window", _count),
    "minLargeMessageSize": ("min_large_message_size", _whole),
}


class ClientUrl(NamedTuple):
    """A client's URL, read."""

    targets: tuple[Endpoint, ...]
    #: Settings by their names.
    options: dict[str, Any]


def parse_url(url: str) -> ClientUrl:
    """Read a client's URL.

    Raises:
        SettingsError: it isn't one, it names what this version does not serve, or an option is wrong.
    """
    read = Url.parse(url)
    scheme = read.scheme.lower()
    if scheme in _TO_COME:
        allowed = f"tcp://, tls:// or inproc:// in this version ({_TO_COME[scheme]} to come)"
        raise SettingsError("url", shown(url), allowed)
    if not read.bracketed:
        return ClientUrl((_target(read),), _options(read.options))
    if scheme:
        raise SettingsError("url", shown(url), ALLOWED)
    for target in read.inside:
        if "name" in dict(target.options):
            raise SettingsError("name", dict(target.options)["name"], "no name in this version (backups to come)")
        if target.query is not None:
            raise SettingsError("url", shown(url), "a list whose options stand once, after the bracket")
    return ClientUrl(tuple(map(_target, read.inside)), _options(read.options))


def _target(url: Url) -> Endpoint:
    target = Endpoint.parse(str(attrs.evolve(url, query=None)))
    if not target.port and target.scheme != "inproc":
        # Only who listens can have one chosen.
        raise SettingsError("url", shown(str(target)), "a port of 1 to 65,535 to connect to")
    return target


def _options(pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, text in pairs:
        if key in SNAKE_CASE:
            name, value = key, SNAKE_CASE[key](key, text)
        elif key in CAMEL_CASE:
            name, read = CAMEL_CASE[key]
            value = read(key, text)
        else:
            raise unknown_key(key, [*SNAKE_CASE, *CAMEL_CASE])
        if name in options:
            raise SettingsError(key, "***" if name == "password" else text, f"{name} once")
        options[name] = value
    return options
