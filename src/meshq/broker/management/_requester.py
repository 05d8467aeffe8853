"""The session that asks for an operation."""

from __future__ import annotations

from typing import Protocol

from meshq.broker.access._access import Asker
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._session_identity import ConsumerPrincipal, SessionOwner


class Requester(Asker, ConsumerPrincipal, SessionOwner, Protocol):
    """A session with its user and its temporary queues."""

    @property
    def node(self) -> tuple[str, str]:
        """The id of the node that has linked in the session, and its life; empty: none has."""

    @property
    def owned(self) -> dict[int, Queue]:
        """The temporary queues of the session, by number."""

    def __hash__(self) -> int:
        """Return the hash of the session: work that waits for a turn is known by its session."""
