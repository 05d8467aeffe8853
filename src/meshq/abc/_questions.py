"""Questions of the nodes of a cluster to each other, over the links that they have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from meshq.errors import MeshqError, NotActiveError

#: The links over which one question goes at most: nodes that know a wrong way to a node do not ask in a circle.
QUESTION_HOPS_MAX = 16


@attrs.frozen(kw_only=True)
class ClusterMember:
    """Another node of a cluster, as this node knows it.

    ``state``: ``linked``; ``connecting``, ``left``, ``away`` or ``down``; or ``behind``: the node is known through
    others only.  ``distance``: the links between here and there that messages take; 0: messages take no way there.
    ``age``: seconds since something was heard of a linked node, or for which another state has lasted; ``inf``: it is
    not known.
    """

    node_id: bytes
    name: str
    state: str
    distance: int
    age: float


class NodeQuestions(ABC):
    """The other nodes of one cluster, and the way to ask them something."""

    @abstractmethod
    def members(self) -> Sequence[ClusterMember]:
        """Return the other nodes that are known."""

    @abstractmethod
    def stuck(self) -> Sequence[Mapping[str, Any]]:
        """Return the messages that this node has found to be stuck in its queues, as rows of an answer."""

    @abstractmethod
    def ask(
        self,
        node_id: bytes,
        operation: str,
        arguments: Mapping[str, Any],
        done: Callable[[Mapping[str, Any]], None],
        failed: Callable[[MeshqError], None],
        hops: int = QUESTION_HOPS_MAX,
    ) -> None:
        """Ask a node; one of the two functions is called, within a few seconds: with the values of the answer, or with
        the reason why there is none.  ``hops``: over so many links at most."""

    def pin_groups(self, letter: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer the letter of another node about the pins of message groups; ``alone``: this one pins none.

        Raises:
            NotActiveError: the pins of groups are not served.
        """
        raise NotActiveError("message groups are not pinned here")


class OwnAnswers(ABC):
    """The answers of a broker about itself, and its place for the clusters whose nodes it may ask."""

    @abstractmethod
    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Carry out an operation of management; return the named values of the answer, as a link would carry them.

        Checkpoint: always.  Cancellation: the operation may be carried out or not.
        Raises:
            MeshqError: the broker has refused, or stops.
        """

    @abstractmethod
    def of(self, cluster: str) -> NodeQuestions:
        """Return the way to ask the nodes of a cluster.  Raises: NotActiveError: the cluster is not served."""

    @abstractmethod
    def add(self, cluster: str, questions: NodeQuestions) -> None:
        """Let clients of the broker, and other nodes, ask the nodes of a cluster."""

    @abstractmethod
    def drop(self, cluster: str) -> None:
        """Ask the nodes of a cluster nothing more."""
