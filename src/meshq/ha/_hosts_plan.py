"""The hosts by which a node knows whether it is cut off from the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

#: After so many rounds in which no host has answered the node is isolated.
ROUNDS_MISSED: Final = 2


def check_hosts_of(value: object) -> tuple[str, ...]:
    """Return hosts to check, as they were given.

    Raises:
        SettingsError: one is neither ``host:port`` nor a URL with both.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise SettingsError("check_hosts", value, "a list of host:port, or URLs")
    for one in value:
        place_of(one)
    return tuple(value)


def place_of(host: object) -> tuple[str, int]:
    """Return the host and the port of a host to check.

    Raises:
        SettingsError: it is neither ``host:port`` nor a URL with both.
    """
    allowed = "host:port, or a URL such as tcp://HOST:PORT"
    if type(host) is not str:
        raise SettingsError("check_hosts", host, allowed)
    try:
        endpoint = Endpoint.parse(host if "://" in host else f"tcp://{host}")
    except SettingsError as error:
        raise SettingsError("check_hosts", host, allowed) from error
    if not endpoint.host or not endpoint.port:
        raise SettingsError("check_hosts", host, allowed)
    return endpoint.host, endpoint.port


class Isolation:
    """Whether a node is cut off: no host has answered in two rounds, one after the other."""

    def __init__(self) -> None:
        self._missed = 0

    @property
    def isolated(self) -> bool:
        """Whether the node is cut off."""
        return self._missed >= ROUNDS_MISSED

    def round(self, *, answered: bool) -> bool:
        """Note a round: whether a host has answered; return whether the node is cut off."""
        self._missed = 0 if answered else self._missed + 1
        return self.isolated
