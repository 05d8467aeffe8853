"""The links to the replicas of a node, as the policy that has replicas sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

Wanted = TypeVar("Wanted", contravariant=True)
Piece = TypeVar("Piece", contravariant=True)
Answer = TypeVar("Answer", contravariant=True)


class ReplicaLine(ABC, Generic[Piece]):
    """The way of the log to a replica: one link, without a session."""

    @abstractmethod
    def send(self, piece: Piece, first: int = 0, body: bytes = b"") -> None:
        """Put a piece of the log in line; silent once the link has ended."""

    @abstractmethod
    def flush(self) -> int:
        """Write the pieces that are in line, and return how many bytes still wait unsent."""

    @abstractmethod
    def end(self, text: str) -> None:
        """Say why no more comes, and end the link; twice is silent."""


class ReplicaEnd(ABC, Generic[Answer]):
    """The policy's part in a link to a replica.  Its calls are made in the turn in which something comes."""

    @abstractmethod
    def heard(self, answer: Answer, first: int) -> None:
        """Take an answer of the replica.

        Raises:
            MeshqError: it is wrong, and the link ends.
        """

    @abstractmethod
    def drained(self) -> None:
        """Note that no byte waits unsent."""

    @abstractmethod
    def leaving(self) -> None:
        """Put the last word in line: the node stops, or steps back."""

    @abstractmethod
    def lost(self) -> None:
        """Note that the link has ended.  Called once."""


class ReplicaHost(ABC, Generic[Wanted, Piece, Answer]):
    """A policy that lets other nodes follow the log of its node."""

    @property
    @abstractmethod
    def silence_s_max(self) -> float:
        """The longest silence on a link, in seconds; a longer one ends it."""

    @abstractmethod
    def follow(self, wanted: Wanted, line: ReplicaLine[Piece], peer: str) -> ReplicaEnd[Answer]:
        """Let a node follow the log, over a link.  ``peer``: the other end, for logs.

        Raises:
            MeshqError: the node may not; nothing has changed.
        """
