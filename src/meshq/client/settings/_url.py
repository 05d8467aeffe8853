"""Client URLs: one target, a bracketed list of them, or a place where brokers announce themselves; and options.

``tcp://host:port?call_timeout=5`` · ``inproc://name`` · ``(tcp://a:1,tcp://b:2)?reconnect_attempts=5`` ·
``udp://231.7.7.7:9876?initial_wait_for=3`` · ``discovery:(multicast://default)?maxReconnectAttempts=3`` ·
``fanout:(static:(tcp://a:1,tcp://b:2))?min_ack_count=2``.
Options in snake_case are seconds; the camelCase spellings that other clients have taught are milliseconds, and -1
there means without end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from meshq.client.settings._fanout_rules import FanoutRules
from meshq.client.settings._place_options import PLACE_OPTIONS, Pairs, divided
from meshq.client.settings._settings import unknown_key
from meshq.client.settings._url_format import ALLOWED, Url, shown
from meshq.discovery import ENDPOINT_SCHEMES, DiscoverySettings, endpoint_at, refresh_timeout_at
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

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


def _attempts(key: str, text: str) -> float:
    """Read a number of attempts of the ``discovery:`` table, in which 0 is without end."""
    return _count(key, text) or math.inf


def _bind_port(key: str, text: str) -> float | None:
    """Read a port, in whose other spelling -1 is any free one."""
    value = _whole(key, text)
    return None if value == -1 else value


def _bool(key: str, text: str) -> bool:
    if text not in _TRUE:
        raise SettingsError(key, text, "true or false")
    return _TRUE[text]


def _text(key: str, text: str) -> str:
    return text


def _not_here(key: str, text: str) -> str:
    # URLs are printed, logged and kept in histories.
    raise SettingsError(key, "***", f"{key}= beside the URL, not in it")


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
    "initial_wait_for": _whole,
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
    "connectionLoadBalancingPolicyClassName": ("load_balancing", _text),
    "loadBalancingPolicyClassName": ("load_balancing", _text),
    "ha": ("ha", _bool),
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


#: Option → the setting it means, and how its text is read: for every URL,
_OPTIONS: Final = {key: (key, read) for key, read in SNAKE_CASE.items()} | CAMEL_CASE
#: for a URL where brokers announce themselves,
_HEARING: Final[dict[str, tuple[str, Read]]] = {
    "refresh_timeout": ("refresh_timeout", _seconds),
    "refreshTimeout": ("refresh_timeout", _milliseconds),
    "bind_address": ("bind_address", _text),
    "localBindAddress": ("bind_address", _text),
    "bind_port": ("bind_port", _whole),
    "localBindPort": ("bind_port", _bind_port),
    "secret": ("secret", _not_here),
}
#: for ``discovery:`` and ``fanout:``,
_RETRIES: Final[dict[str, tuple[str, Read]]] = {
    "initial_reconnect_delay": ("retry_interval", _seconds),
    "initialReconnectDelay": ("retry_interval", _milliseconds),
    "max_reconnect_delay": ("max_retry_interval", _seconds),
    "maxReconnectDelay": ("max_retry_interval", _milliseconds),
    "use_exponential_back_off": ("use_exponential_back_off", _bool),
    "useExponentialBackOff": ("use_exponential_back_off", _bool),
    "back_off_multiplier": ("retry_interval_multiplier", _number),
    "backOffMultiplier": ("retry_interval_multiplier", _number),
    "max_reconnect_attempts": ("reconnect_attempts", _attempts),
    "maxReconnectAttempts": ("reconnect_attempts", _attempts),
}
#: and for ``fanout:`` alone.
_FANOUT: Final[dict[str, tuple[str, Read]]] = {
    "min_ack_count": ("min_ack_count", _whole),
    "minAckCount": ("min_ack_count", _whole),
    "fan_out_queues": ("fan_out_queues", _bool),
    "fanOutQueues": ("fan_out_queues", _bool),
}
#: Settings by which one broker is chosen, of which a fanout client has no use.
OF_ONE_BROKER: Final = frozenset({"use_topology", "load_balancing", "initial_wait_timeout", "initial_wait_for"})
#: What these two take unless told otherwise: without end, 10 ms later, then twice as long up to 30 s.
_RETRIES_UNLESS_TOLD: Final[dict[str, Any]] = {
    "reconnect_attempts": math.inf,
    "retry_interval": 0.01,
    "retry_interval_multiplier": 2.0,
    "max_retry_interval": 30.0,
}
_AGENTS: Final = (
    "an agent in brackets: discovery:(AGENT) or fanout:(AGENT), with udp://GROUP:PORT, multicast://NAME,"
    " zeroconf://NAME or static:(URL,...)"
)


@attrs.frozen(kw_only=True)
class ClientUrl:
    """A client's URL, read."""

    #: Empty if brokers are discovered.
    targets: tuple[Endpoint, ...] = ()
    #: The targets that have a name, with which a node that has told the name of its connector is reached.
    names: dict[str, Endpoint] = attrs.field(factory=dict)
    #: Settings by their names; and those that hold unless they are given elsewhere.
    options: dict[str, Any]
    defaults: dict[str, Any] = attrs.field(factory=dict)
    #: Where and how brokers are heard; None: they are listed.
    heard_at: DiscoverySettings | None = None
    #: The options of each place that is heard of; a listed target has its own.
    place_options: tuple[tuple[str, str], ...] = ()
    #: A client sends to all the brokers; None: it has a session at one of them.
    fanout: FanoutRules | None = None


def parse_url(url: str) -> ClientUrl:
    """Read a client's URL.

    Raises:
        SettingsError: it isn't one, it names what this version does not serve, or an option is wrong.
    """
    read = Url.parse(url)
    scheme = read.scheme.lower()
    if scheme == "discovery":
        return _agent(read, {**_OPTIONS, **_RETRIES})
    if scheme == "fanout":
        return _fanout(read)
    if scheme in ENDPOINT_SCHEMES and not read.inside:
        return _heard(read, read.options, _OPTIONS)
    if scheme and read.inside and not (scheme == "static" and read.bracketed):
        raise SettingsError("url", shown(url), ALLOWED)
    of_places, others = divided(read.options)
    options = _options(others, _OPTIONS)
    if read.bracketed:
        targets, names = _list(read, of_places)
        return ClientUrl(targets=targets, names=names, options=options)
    return ClientUrl(targets=(_target(read, of_places),), options=options)


def _list(read: Url, of_places: Pairs) -> tuple[tuple[Endpoint, ...], dict[str, Endpoint]]:
    """Return the targets in the brackets of a list, and those by name that have one.

    ``of_places``: the options of those that have none of their own.
    """
    found: list[Endpoint] = []
    names: dict[str, Endpoint] = {}
    for target in read.inside:
        own, others = divided([pair for pair in target.options if pair[0] != "name"])
        if others:
            raise SettingsError("url", shown(str(read)), "a list whose options stand once, after the bracket")
        found.append(_target(target, own or of_places))
        for name in (text for key, text in target.options if key == "name"):
            if not name or name in names or found[-1] in names.values():
                raise SettingsError("name", name, "a name that no other place of the list has, once for a place")
            names[name] = found[-1]
    return tuple(found), names


def _target(url: Url, of_places: Pairs) -> Endpoint:
    target = attrs.evolve(Endpoint.parse(str(attrs.evolve(url, query=None))), options=tuple(of_places))
    if not target.port and target.scheme != "inproc":
        # Only who listens can have one chosen.
        raise SettingsError("url", shown(str(target)), "a port of 1 to 65,535 to connect to")
    return target


def _fanout(read: Url) -> ClientUrl:
    """Read ``fanout:(AGENT)?options``, also without the brackets."""
    many = {key: found for key, found in _OPTIONS.items() if found[0] not in {*OF_ONE_BROKER, "ha"}}
    found = _agent(read, {**many, **_RETRIES, **_FANOUT})
    options = dict(found.options)
    rules = FanoutRules(**{name: options.pop(name) for name in ("min_ack_count", "fan_out_queues") if name in options})
    if found.heard_at is None and rules.min_ack_count > len(dict.fromkeys(found.targets)):
        raise SettingsError("min_ack_count", rules.min_ack_count, "at most the number of brokers in the list")
    return attrs.evolve(found, options=options, fanout=rules)


def _agent(read: Url, known: Mapping[str, tuple[str, Read]]) -> ClientUrl:
    """Read ``SCHEME:(AGENT)?options``, also without the brackets; the agent's options are options as well."""
    if len(read.inside) != 1:
        raise SettingsError("url", shown(str(read)), _AGENTS)
    agent = read.inside[0]
    scheme = agent.scheme.lower()
    of_places, others = divided((*agent.options, *read.options))
    if scheme == "static" and agent.bracketed:
        targets, names = _list(agent, of_places)
        found = ClientUrl(targets=targets, names=names, options=_options(others, known))
    elif scheme in ENDPOINT_SCHEMES and not agent.inside:
        found = _heard(agent, (*agent.options, *read.options), known)
    else:
        raise SettingsError("url", shown(str(read)), _AGENTS)
    options, defaults = dict(found.options), dict(_RETRIES_UNLESS_TOLD)
    if not options.pop("use_exponential_back_off", True):
        defaults["retry_interval_multiplier"] = 1.0
        if "retry_interval_multiplier" in options:
            raise SettingsError("back_off_multiplier", options["retry_interval_multiplier"], "no back-off without it")
    # The first connection is tried as often as a later one.
    defaults["initial_connect_attempts"] = options.get("reconnect_attempts", math.inf) or 1
    return attrs.evolve(found, options=options, defaults=defaults)


def _heard(place: Url, pairs: Pairs, known: Mapping[str, tuple[str, Read]]) -> ClientUrl:
    """Read the URL of a place where brokers announce themselves."""
    of_places, others = divided(pairs)
    options = _options(others, {**known, **_HEARING})
    bound = {name: options.pop(name) for name in ("bind_address", "bind_port") if name in options}
    refresh = {name: options.pop(name) for name in ("refresh_timeout",) if name in options}
    scheme = place.scheme.lower()
    endpoint = endpoint_at(scheme, place.place, **bound)
    heard_at = DiscoverySettings(
        name=f"{scheme}://{place.place}", endpoint=endpoint, **{**refresh_timeout_at(scheme), **refresh}
    )
    return ClientUrl(options=options, heard_at=heard_at, place_options=of_places)


def _options(pairs: Pairs, known: Mapping[str, tuple[str, Read]]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, text in pairs:
        if key == "name":
            raise SettingsError(key, text, "a name of a place in a list: (tcp://HOST:PORT?name=NODE,...)")
        if key not in known:
            raise unknown_key(key, [*known, *PLACE_OPTIONS])
        name, read = known[key]
        value = read(key, text)
        if name == "ha":
            # Who follows the topology to backups follows the topology; who does not keeps to the places of the URL.
            name = "use_topology"
        if name in options:
            raise SettingsError(key, "***" if name == "password" else text, f"{name} once")
        options[name] = value
    return options
