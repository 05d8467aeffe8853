"""The scene of a meeting: the cluster, the row of features, chance, and the accounts; its actors share it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from meshq.client import Client
from meshq.testing import Cluster
from qa.pairs.accounts import MeetingAccounts
from qa.pairs.covering import Row
from qa.pairs.features import APP, GUEST, PASSWORDS, nodes_of

PATIENT: Final[dict[str, Any]] = {
    "initial_connect_attempts": math.inf,
    "reconnect_attempts": math.inf,
    "call_timeout": 20.0,
    "call_failover_timeout": 20.0,
}
#: Seconds between two looks whether the consumers have left.
LOOK_S: Final = 0.05


class MeetingScene:
    """The cluster, the features, chance and the accounts, which all actors of a meeting share."""

    def __init__(self, cluster: Cluster, row: Row) -> None:
        self.cluster = cluster
        self.row = row
        self.chance = cluster.rng
        self.accounts = MeetingAccounts(row)
        self.over = trio.Event()
        #: Whether consumers are to leave the queue, and how many are there.
        self.cleared = False
        self.consumers = 0

    @property
    def first(self) -> str:
        """The node of the producers."""
        return nodes_of(self.row)[0]

    @property
    def last(self) -> str:
        """The node of the consumers."""
        return nodes_of(self.row)[-1]

    def on(self, feature: str) -> bool:
        """Whether a feature is on."""
        return feature in self.row

    def often(self, feature: str, share: float = 0.4) -> bool:
        """Whether a feature is on, and chance has it that it acts now."""
        acts = self.on(feature) and self.chance.random() < share
        self.accounts.acted[feature] += acts
        return acts

    async def rest(self, most_s: float, least_s: float = 0.0) -> None:
        """Wait for a while.  Checkpoint: always.  Cancellation: ends it."""
        await trio.sleep(self.chance.uniform(least_s, most_s))

    # -- clients

    def client(self, node: str) -> Client:
        """Make a client of the application."""
        return self.cluster.broker(node).client() if self.on("in process") else self.remote(node)

    def remote(self, node: str, user: str = APP) -> Client:
        """Make a client over the network."""
        login: dict[str, Any] = {"user": user, "password": PASSWORDS[user]} if self.on("permissions") else {}
        return self.cluster.client(node, **PATIENT, **login)

    def guest(self) -> Client:
        """Make a client of a user who may do next to nothing."""
        return self.remote(self.first, GUEST)

    # -- turns at the queue

    @asynccontextmanager
    async def clearing(self) -> AsyncIterator[None]:
        """Let all consumers leave the queue, and come back afterwards.

        Checkpoint: always.  Cancellation: they come back.
        """
        self.cleared = True
        try:
            while self.consumers:  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(LOOK_S)
            yield
        finally:
            self.cleared = False
