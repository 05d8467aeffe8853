"""Chains and rings of nodes for tests: who is linked to whom."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from meshq import ClusterConnection
from tests.cluster.nodes import connection

CHAIN = {"a": ["b"], "b": ["c"], "c": []}


def way(names: str, *, ring: bool = False, both: bool = False) -> dict[str, list[str]]:
    """To whom each node of a chain or ring is linked."""
    found: dict[str, list[str]] = {name: [] for name in names}
    pairs = [*pairwise(names), *([(names[-1], names[0])] if ring else [])]
    for here, there in pairs:
        found[here].append(there)
        if both:
            found[there].append(here)
    return found


def connections(links: Mapping[str, list[str]], **settings: Any) -> dict[str, list[ClusterConnection]]:
    return {name: [connection(name, to, allow_direct_connections_only=True, **settings)] for name, to in links.items()}


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
