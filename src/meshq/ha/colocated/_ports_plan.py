"""The URLs at which a backup listens, and a check that its host and its node do not use them; plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from meshq.endpoint import Endpoint, told_place
from meshq.errors import SettingsError

_PORT_MAX: Final = 65_535


def moved_url(url: str, name: str, offset: int) -> str:
    """Return a URL of a host as it is for a backup: with a higher port, or in the process with the name at its end.

    A port 0, which the system chooses, stays 0.

    Raises:
        SettingsError: the port would be above 65,535, or it is no URL of one endpoint.
    """
    endpoint = Endpoint.parse(url)
    if endpoint.scheme == "inproc":
        return str(attrs.evolve(endpoint, host=f"{endpoint.host}.{name}"))
    if endpoint.port == 0:
        return url
    if endpoint.port + offset > _PORT_MAX:
        raise SettingsError("backup_port_offset", offset, f"so much that {endpoint.port} + {offset} is a port")
    return str(attrs.evolve(endpoint, port=endpoint.port + offset))


def check_own_ports(acceptors: Sequence[str], offset: int, places: Iterable[int]) -> None:
    """Check that no backup at one of these places listens where its host does.

    Raises:
        SettingsError: one would; both URLs are named.
    """
    for place in places:
        for url in acceptors:
            endpoint = Endpoint.parse(url)
            if endpoint.scheme != "inproc" and 0 < endpoint.port <= _PORT_MAX - place * offset:
                _check_place(url, str(attrs.evolve(endpoint, port=endpoint.port + place * offset)), acceptors, offset)


def check_first_place(acceptors: Sequence[str], offset: int) -> None:
    """Check that a backup can listen at all: if not at the first place, then at no other one, either.

    Raises:
        SettingsError: one of its ports would be above 65,535.
    """
    for url in acceptors:
        moved_url(url, "", offset)


def _check_place(url: str, moved: str, acceptors: Sequence[str], offset: int) -> None:
    for other in acceptors:
        if _is_one_place(Endpoint.parse(moved), Endpoint.parse(other)):
            allowed = "so much that no backup listens where its host does"
            text = f"{allowed}: that of {url!r} would be at {moved!r}, which meets {other!r}"
            raise SettingsError("backup_port_offset", offset, text)


def check_requester_port(moved: Sequence[str], url: str, own: Iterable[str], offset: int) -> None:
    """Check that a backup does not listen where its node does, if that is on the same machine.

    ``moved``: where the backup would listen; ``url``: where its node is reached; ``own``: URLs of the host, which say
    by which names its machine is reached.

    Raises:
        SettingsError: it would; both URLs are named.
    """
    if not (place := told_place(url)):
        # Others do not reach the node there.
        return
    node = Endpoint.parse(place)
    names = {Endpoint.parse(one).host for one in own}
    for one in moved:
        endpoint = Endpoint.parse(one)
        if endpoint.wildcard and not node.loopback and node.host not in names:
            continue
        if _is_one_place(endpoint, node):
            allowed = "so much that no backup listens where its node does"
            text = f"{allowed}: it would be at {one!r}, which meets {place!r}"
            raise SettingsError("backup_port_offset", offset, text)


def _is_one_place(one: Endpoint, other: Endpoint) -> bool:
    """Whether no two can listen at both on one machine."""
    if "inproc" in (one.scheme, other.scheme) or one.port != other.port or not one.port:
        return False
    either_name = one.loopback and other.loopback and "localhost" in (one.host, other.host)
    return one.host == other.host or one.wildcard or other.wildcard or either_name
