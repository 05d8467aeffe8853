"""Announcements for tests."""

from __future__ import annotations

from typing import Any

from meshq.discovery import Announcement, ConnectorPair

NODE = bytes(range(16))
LIFE = bytes(range(16, 32))
SECRET = b"a secret of the group"


def an_announcement(**changed: Any) -> Announcement:
    """Return an announcement of the node ``a``, with some fields changed."""
    fields: dict[str, Any] = {
        "node_id": NODE,
        "instance": LIFE,
        "began_ms": 1_700_000_000_000,
        "sequence": 1,
        "period_ms": 2_000,
        "name": "a",
        "connectors": (ConnectorPair("tcp://127.0.0.1:61616"),),
    }
    return Announcement(**{**fields, **changed})


def at(*urls: str) -> tuple[ConnectorPair, ...]:
    """Return connectors without backups."""
    return tuple(map(ConnectorPair, urls))
