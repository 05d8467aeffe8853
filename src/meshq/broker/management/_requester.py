"""The session that asks for an operation."""

from __future__ import annotations

from typing import Protocol

from meshq.broker.access._access import Rights
from meshq.broker.queue._queue_machine import Queue


class Requester(Protocol):
    """A session with its user and its temporary queues."""

    number: int
    label: str
    #: Role and user.
    owner: tuple[str, str]
    #: The rights of the user; None: all that there are.
    rights: Rights | None
    #: The temporary queues of the session, by number.
    owned: dict[int, Queue]

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""

    def queue_deleted(self, number: int) -> None:
        """Forget the queue with this number, which is deleted."""

    @property
    def peer(self) -> str:
        """The address of the client; "nowhere" without a link."""

    def __hash__(self) -> int:
        """Return the hash of the session: work that waits for a turn is known by its session."""
