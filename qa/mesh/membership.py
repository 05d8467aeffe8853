"""How the nodes of the simulated mesh know each other: by a list that each of them has, or by discovery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import attrs

from meshq import abc

NODES: Final = ("a", "b", "c")
#: The nodes of a mesh of more.
WIDE: Final = ("abcd", "abcde", "abcde", "abcdefg")


def urls_of(names: Iterable[str]) -> dict[str, str]:
    """The connectors of nodes."""
    return {name: f"tcp://{name}:5000?insecure=true" for name in names}


URLS: Final = urls_of(NODES)


@attrs.frozen(kw_only=True)
class Membership:
    """The settings by which one life of a node knows the others, and is known by them.

    ``cluster``: settings of its cluster connection.  ``acceptors``: where it listens for other nodes, first of all.
    """

    connectors: dict[str, str]
    cluster: dict[str, Any]
    acceptors: Sequence[str] = ()
    services: Sequence[abc.Service] = ()


class Memberships(Protocol):
    """The memberships of all nodes, a new one for each life."""

    #: The names of the nodes.
    names: Sequence[str]
    #: The kinds of faults that there are besides those of every mesh.
    fault_kinds: tuple[str, ...]

    def move(self, name: str) -> None:
        """Let the next life of a node listen elsewhere."""

    def of(self, name: str) -> Membership:
        """Return the membership of a life that begins."""
