"""The order in which a client tries nodes: the last one first, then as the policy of its factory chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from meshq.abc import BalancerPolicy, BalancerTarget, Env, TargetPolicy
from meshq.client.link._node_book_machine import NodeBook
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError
from meshq.lb import begun_policy, policy_of

#: A factory's policy begins with so many bytes by chance.
CHANCE_BYTES: Final = 8


class NodeChooser(Protocol):
    """The policy of a factory, as one client asks it."""

    def choose(self, places: Sequence[Endpoint]) -> Endpoint | None:
        """Return one of some places; None: the policy chooses none."""


class NodeChoice(NodeChooser):
    """The policy of a factory, which all clients of the factory ask.

    ``book``: knows the ids of nodes; None: nobody does.  ``key``: what the policy is told of the clients.
    """

    def __init__(self, policy: object, env: Env, *, key: str, book: NodeBook | None) -> None:
        self.policy: BalancerPolicy = policy_of("load_balancing", "round_robin" if policy is None else policy)
        self._env = env
        self._key = key
        self._book = book
        # Made by the first choice: building a factory draws no number.
        self._begun: BalancerPolicy | None = None

    def choose(self, places: Sequence[Endpoint]) -> Endpoint | None:
        """Return one of some places; None: the policy chooses none.

        Raises:
            SettingsError: the policy began as no policy, or chose what it was not given.
        """
        if self._begun is None:
            chance = int.from_bytes(self._env.entropy.token(CHANCE_BYTES))
            self._begun = begun_policy("load_balancing", self.policy, chance)
        offered = {self._target(place): place for place in places}
        chosen: object = self._begun.select(tuple(offered), self._key)
        if chosen is None:
            return None
        if not isinstance(chosen, BalancerTarget) or chosen not in offered:
            shown = f"{type(self.policy).__name__}.select: {chosen!r}"
            raise SettingsError("load_balancing", shown, "a policy that selects one of the given targets, or None")
        return offered[chosen]

    def __str__(self) -> str:
        return repr(self.policy)

    def _target(self, place: Endpoint) -> BalancerTarget:
        node_id = self._book.node_at(place).hex() if self._book is not None else ""
        return BalancerTarget(url=str(attrs.evolve(place, options=())), node_id=node_id)


class BalancedOrder(TargetPolicy):
    """The order of one client: the last node, then the node that the policy chooses, then the others in turn.

    Only the last node can resume the session.
    The policy is asked once for each search for a node, and again when its choice is gone from the list.  A node that
    asked its clients to leave comes last.  When the policy chooses none, there is none but the last one.
    """

    def __init__(self, choice: NodeChooser) -> None:
        self._choice = choice
        # For whom the policy was asked last, and what it chose.
        self._searched_from: Endpoint | None = None
        self._chosen: Endpoint | None = None
        #: The nodes of which the policy has chosen none, when it was asked last.
        self.refused: int = 0

    def order(self, endpoints: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> Sequence[Endpoint]:
        """Return the endpoints of one round."""
        others = [endpoint for endpoint in endpoints if endpoint != last]
        if others and (self._chosen not in others or self._searched_from != last):
            self._chosen = self._choice.choose(others)
        self._searched_from = last
        self.refused = len(others) if self._chosen not in others else 0
        first = others.index(self._chosen) if self._chosen in others else 0
        turned = [*others[first:], *others[:first]] if not self.refused else []
        if last is None or last not in endpoints:
            return turned
        return [*turned, last] if leave_last else [last, *turned]

    def why_none(self) -> str:
        """Why there is no node to dial; empty: the policy is not the reason."""
        if not self.refused:
            return ""
        return f"{self._choice} chose none of the {self.refused} nodes that are known"
