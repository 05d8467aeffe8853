"""Endpoints as URLs: ``udp://231.7.7.7:9876`` is a multicast group, ``multicast://default`` one by its name."""

from __future__ import annotations

from typing import Final

from meshq.abc import BroadcastEndpoint
from meshq.discovery._udp_multicast import UDPMulticast
from meshq.errors import SettingsError

#: The schemes that name an endpoint of discovery.
ENDPOINT_SCHEMES: Final = ("udp", "multicast")
_UDP: Final = "udp://GROUP:PORT, such as udp://231.7.7.7:9876"


def endpoint_at(
    scheme: str, place: str, *, bind_address: str | None = None, bind_port: int | None = None
) -> BroadcastEndpoint:
    """Return the endpoint that a URL names.

    Raises:
        SettingsError: the place or an option is not allowed.
    """
    if scheme == "multicast":
        return UDPMulticast.named(place, bind_address=bind_address, bind_port=bind_port)
    group, colon, port = place.rpartition(":")
    # A number of thousands of digits can't be read at all.
    if scheme != "udp" or not colon or not port.isdecimal() or len(port) > 5:
        raise SettingsError("url", f"{scheme}://{place}", _UDP)
    return UDPMulticast(group, int(port), bind_address=bind_address, bind_port=bind_port)
