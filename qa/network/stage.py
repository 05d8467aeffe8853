"""The simulated network as its checks see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from meshq import Broker, Delivery
from meshq.testing import Simulation
from qa.network.shape import NetworkShape


class RunningBroker(Protocol):
    """A broker of the network."""

    name: str
    broker: Broker


class NetworkStage(Protocol):
    """The brokers of a seed and the accounts of their users."""

    simulation: Simulation
    shape: NetworkShape
    acknowledged: Counter[str]
    consumed: Counter[str]

    @property
    def nodes(self) -> Mapping[str, RunningBroker]:
        """The brokers by name."""

    def new_uid(self, name: str) -> str:
        """The body of a new message."""

    def wrong(self, checker: str, what: str) -> None:
        """Note that a promise was broken."""

    def seen(self, sight: str, number: int = 1) -> None:
        """Count a sight."""

    def judge(self, name: str, delivery: Delivery) -> None:
        """Check the way on which a message has come."""

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two machines."""
