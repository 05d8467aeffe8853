"""Endpoints as URLs: ``udp://231.7.7.7:9876`` is a multicast group, ``multicast://default`` one by its name, and
``zeroconf://default`` a group that is found by DNS-SD."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

import attrs

from meshq.abc import BroadcastEndpoint
from meshq.discovery._dns_sd_format import GROUP_CHARACTERS_MAX, is_installed
from meshq.discovery._settings import BroadcastSettings
from meshq.discovery._udp_multicast import UDPMulticast
from meshq.discovery._zeroconf import Zeroconf
from meshq.errors import SettingsError

#: The schemes that name an endpoint of discovery.
ENDPOINT_SCHEMES: Final = ("udp", "multicast", "zeroconf")
#: Option of a place where acceptors are announced → the setting it means.
_OPTIONS: Final = {
    "bind_address": "bind_address",
    "localBindAddress": "bind_address",
    "bind_port": "bind_port",
    "localBindPort": "bind_port",
    "broadcast_period": "broadcast_period",
    "broadcastPeriod": "broadcast_period",
}
MS_PER_S: Final = 1_000
#: How often acceptors are announced unless the URL says it, in seconds, and as others of multicast groups do.
_PERIOD: Final = "2"
_MULTICAST_PERIOD: Final = "0.5"
#: After how many missed announcements a node of a multicast group is taken for dead.
MISSED_MAX: Final = 10
_PORT_DIGITS_MAX: Final = 5
_PLACES: Final = "multicast://NAME, udp://GROUP:PORT or zeroconf://NAME"
_UDP: Final = "udp://GROUP:PORT, such as udp://231.7.7.7:9876"


def endpoint_at(
    scheme: str, place: str, *, bind_address: str | None = None, bind_port: int | None = None
) -> BroadcastEndpoint:
    """Return the endpoint that a URL names.

    Raises:
        SettingsError: the place or an option is not allowed.
        UsageError: the package that the endpoint needs is not installed.
    """
    if scheme == "zeroconf":
        if bind_port is not None:
            raise SettingsError("bind_port", bind_port, "no port with zeroconf:, which has its own")
        return Zeroconf(place, bind_address=bind_address)
    if scheme == "multicast":
        return UDPMulticast.named(place, bind_address=bind_address, bind_port=bind_port)
    group, colon, port = place.rpartition(":")
    # A number of thousands of digits can't be read at all.
    if scheme != "udp" or not colon or not port.isdecimal() or len(port) > _PORT_DIGITS_MAX:
        raise SettingsError("url", f"{scheme}://{place}", _UDP)
    return UDPMulticast(group, int(port), bind_address=bind_address, bind_port=bind_port)


def refresh_timeout_at(scheme: str) -> dict[str, float]:
    """Return the refresh timeout of a place if the scheme of its URL says another one than that of all groups."""
    return {"refresh_timeout": MISSED_MAX * float(_MULTICAST_PERIOD)} if scheme == "multicast" else {}


@attrs.frozen
class AnnouncedAt:
    """Where and how often acceptors are announced, as a URL says."""

    endpoints: tuple[BroadcastEndpoint, ...]
    period_s: float


def announced_at(url: str) -> AnnouncedAt:
    """Read the URL of a place where acceptors are announced: ``multicast://default?broadcast_period=1``.

    Raises:
        SettingsError: it isn't one, or an option is not allowed.
        UsageError: the package that the endpoint needs is not installed.
    """
    place, mark, query = url.partition("?")
    scheme, slashes, name = place.partition("://")
    if not slashes or scheme not in ENDPOINT_SCHEMES:
        raise SettingsError("discovery", place, _PLACES)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark))
    except ValueError as error:
        raise SettingsError("discovery", place, "a query of key=value pairs") from error
    given: dict[str, str] = {}
    for key, text in pairs:
        if key not in _OPTIONS or _OPTIONS[key] in given:
            known = ", ".join(_OPTIONS)
            raise SettingsError("discovery", f"{place}?{key}=***", f"each of these options once: {known}")
        given[_OPTIONS[key]] = str(_number(place, text) / MS_PER_S) if key == "broadcastPeriod" else text
    port = given.get("bind_port", "-1")
    if port != "-1" and not (port.isdecimal() and len(port) <= _PORT_DIGITS_MAX):
        raise SettingsError("discovery", f"{place}?***", "a port as bind_port, or -1 for any")
    interface = given.get("bind_address")
    endpoint = endpoint_at(scheme, name, bind_address=interface, bind_port=None if port == "-1" else int(port))
    endpoints = [endpoint]
    if scheme == "multicast" and len(name) <= GROUP_CHARACTERS_MAX and is_installed():
        endpoints.append(Zeroconf(name, bind_address=interface))
    settings = BroadcastSettings(
        name=place,
        endpoint=endpoint,
        connectors=("acceptors",),
        broadcast_period=_number(
            place, given.get("broadcast_period", _MULTICAST_PERIOD if scheme == "multicast" else _PERIOD)
        ),
    )
    return AnnouncedAt(tuple(endpoints), settings.broadcast_period)


def _number(place: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError("discovery", f"{place}?***", "a number as broadcast_period") from None
