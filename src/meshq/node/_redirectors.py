"""The balancers of a node, for its acceptors and its operators."""

from __future__ import annotations

from meshq import abc
from meshq.broker import Core, SessionRegistry


class LocalRedirectors(abc.Redirectors):
    """The balancers of one life of a node."""

    def __init__(self, core: Core, sessions: SessionRegistry) -> None:
        self._core = core
        self._sessions = sessions

    def add(self, name: str, redirector: abc.Redirector) -> None:
        """Let acceptors and operators use a balancer."""
        self._core.settings.redirectors[name] = redirector

    def clients(self) -> int:
        """Return how many clients are connected now."""
        return self._sessions.clients
