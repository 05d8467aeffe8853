"""Balancers, as a broker sees them: they say which clients go on to another broker, and answer operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshq.abc._admission import AdmissionDecision, HandshakeFacts
from meshq.abc._balancing import BalancerTarget


class Redirector(ABC):
    """A balancer: decides for each client of an acceptor whether it stays here or goes to another broker."""

    @abstractmethod
    def route(self, facts: HandshakeFacts, answer: Callable[[AdmissionDecision], None]) -> Callable[[], None]:
        """Decide about one client that has logged in; ``answer`` is called once, before the return or later, within
        a time that is bounded.  The function that is returned withdraws the question; twice is silent."""

    @abstractmethod
    def find_target(self, key: str, answer: Callable[[BalancerTarget | None], None]) -> None:
        """Decide about a key, for a client that asks; ``answer`` is called once, with None if there is no target in
        time."""

    @abstractmethod
    def explain(self, key: str) -> Mapping[str, Any]:
        """Return the decision about a key, and its steps, as the values of an answer; nothing changes."""

    @abstractmethod
    def set_filter(self, setting: str, text: str | None) -> None:
        """Set ``target_key_filter`` or ``local_target_filter`` for connections from now on.

        Raises:
            SettingsError: it is no expression, or one that could take long.
        """

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return the state and the counters, as the values of an answer."""

    @abstractmethod
    def describe_targets(self) -> Sequence[Mapping[str, Any]]:
        """Return the targets of the pool, as rows of an answer."""


class Redirectors(ABC):
    """The balancers of a broker, by name: acceptors use them, and operators ask them."""

    @abstractmethod
    def add(self, name: str, redirector: Redirector) -> None:
        """Let acceptors and operators use a balancer from now on, in this life of the broker."""

    @abstractmethod
    def clients(self) -> int:
        """Return how many clients have a session at the broker.

        Raises:
            NotActiveError: it takes no client in, since it stops or hands over what it has.
        """
