"""The session of a consumer or of a temporary queue, as far as the queue knows a session."""

from __future__ import annotations

from typing import Protocol


class SessionIdentity(Protocol):
    """The client or peer that a session belongs to."""

    @property
    def owner(self) -> tuple[str, str]:
        """The role on the wire, and the user."""

    @property
    def peer(self) -> str:
        """The address of the client; "nowhere" without a link."""


class ConsumerPrincipal(SessionIdentity, Protocol):
    """The session of a consumer, as far as the queue's figures and errors name the session."""

    @property
    def number(self) -> int:
        """The number of the session."""

    @property
    def label(self) -> str:
        """The name that the client gave the session; may be empty."""


class SessionOwner(SessionIdentity, Protocol):
    """The session that temporary queues belong to."""

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""

    def queue_deleted(self, number: int) -> None:
        """Forget the queue with this number, which is deleted."""
