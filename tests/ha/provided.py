"""A pair whose nodes ask a quorum in memory, on machines of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from meshq import Broker, ReplicationBackup, ReplicationPrimary
from meshq.abc import HAPolicy, QuorumRecord
from meshq.ha.replication._node_directory import NodeDirectory
from meshq.testing import MemoryQuorum
from tests.ha.replicated import Machines, machines

SESSION_S = 6.0
NODE_ID = b"n" * 16


@attrs.define
class Pair:
    """Nodes with one quorum."""

    ground: Machines
    nursery: trio.Nursery
    quorum: MemoryQuorum = attrs.field(factory=lambda: MemoryQuorum(session=SESSION_S))
    node_id: bytes = b""

    def first(self, **settings: Any) -> HAPolicy:
        return ReplicationPrimary(**{"quorum": self.quorum, "wait_for_activation": False, **settings})

    def second(self, **settings: Any) -> HAPolicy:
        return ReplicationBackup(quorum=self.quorum, **settings)

    def peer(self) -> HAPolicy:
        return self.first(coordination_id="peer-journal-001")

    async def start(self, name: str, policy: HAPolicy, **settings: Any) -> Broker:
        """Start a node; a primary has an id from the beginning, since the other place does not answer yet."""
        if getattr(policy, "coordination_id", "") is None and "node_id" not in settings:
            settings["node_id"] = NODE_ID
        return await self.ground.start(self.nursery, self.ground.broker(name, policy, **settings))

    async def both(self, **backup: Any) -> tuple[Broker, Broker]:
        """Start a primary and a backup, and wait until the backup is in sync."""
        first = await self.start("a", self.first())
        await active(first)
        second = await self.start("b", self.second(**backup))
        await self.in_sync(first)
        return first, second

    async def in_sync(self, acting: Broker) -> None:
        await acting.ha.wait_for(in_sync=True, timeout=60)
        self.node_id = bytes(acting.node_id)

    async def kill(self, broker: Broker) -> None:
        """End a node that gives nothing back."""
        self.quorum.cut(self.quorum.place(self.node_id).holder)
        await self.ground.crash(broker)

    @property
    def record(self) -> QuorumRecord:
        return self.quorum.record(self.node_id)

    @property
    def figures(self) -> tuple[int, tuple[str, ...]]:
        assert self.record.claimed == self.record.sequence
        return self.record.sequence, self.record.in_sync

    def counter(self, name: str) -> int:
        """Return the counter in the store of a node."""
        return NodeDirectory(self.ground.disks[name].mount(), "/data").standing().activation


@asynccontextmanager
async def pairs() -> AsyncIterator[Pair]:
    async with machines() as (ground, nursery):
        yield Pair(ground, nursery)


async def active(broker: Broker) -> float:
    """Wait until a node serves; return when."""
    await broker.ha.wait_for(phase="active", timeout=60)
    return trio.current_time()
