"""Rare events, which some seeds try on purpose after the faults: by chance they hardly ever happen.

Each draws from a generator of its own, and what came before is the same without it.
"""

from __future__ import annotations

import random
from typing import Final

import trio

from meshq.client import Client
from meshq.errors import MeshqError
from meshq.limits import SECTOR_BYTES
from meshq.testing import SimDisk, Swarm
from qa.simulation.broker import BrokerNode
from qa.simulation.workload import ADDRESSES, Batch, Scene

#: The share of seeds in which each of them is tried.
SHARE: Final = 0.5
#: Turns of the loop after which messages are sent again, at most: the first ones are placed by then, not synced.
AGAIN_TURNS: Final = 6
#: Seconds after which the second of two equal sends has come to its end, or is given up.
TWICE_S: Final = 5.0
INDEX_SUFFIX: Final = ".idx"


async def power_after_a_repeat(scene: Scene, broker: BrokerNode, swarm: Swarm) -> None:
    """Send messages twice at a time, and cut the power in the moment in which the second send is confirmed.

    The clients are in the process of the broker and die with it: nobody sends the messages a third time.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    rng = swarm.rng("repeat")
    swarm.count("seen.power_after_a_repeat", 0)
    if rng.random() >= SHARE:
        return
    await broker.serving()
    over = trio.Event()
    broker.node.spawn(_Repeat(scene, broker, rng, over).run)
    with trio.move_on_after(TWICE_S):
        await over.wait()
        swarm.count("seen.power_after_a_repeat")
    broker.node.power_off()
    await broker.serving()


class _Repeat:
    """Messages that are sent twice by clients in the process of a broker."""

    def __init__(self, scene: Scene, broker: BrokerNode, rng: random.Random, over: trio.Event) -> None:
        self._scene = scene
        self._broker = broker
        self._rng = rng
        self._over = over
        address = rng.choice([address for address in ADDRESSES if address != "kept"])
        self._one, self._other, self._batch = (
            Batch(address, tuple(scene.uid() for _ in range(size)), True, True)
            for size in (1, 1, rng.choice((1, 3, 20)))
        )

    async def run(self) -> None:
        """Send them.  Checkpoint: always.  Cancellation: ends it."""
        try:
            async with self._broker.client() as first, self._broker.client() as second, trio.open_nursery() as nursery:
                # Whoever sends for the first time needs some turns more.
                await self._send(first, "first", self._one)
                await self._send(second, "again", self._other)
                nursery.start_soon(self._send, first, "first", self._batch)
                for _ in range(self._rng.randrange(1, AGAIN_TURNS)):
                    await trio.lowlevel.checkpoint()
                await self._send(second, "again", self._batch)
                self._broker.node.power_off()
                self._over.set()
        except MeshqError as error:
            self._scene.history.note(f"the repeat: {error!r}")

    async def _send(self, client: Client, who: str, batch: Batch) -> None:
        history = self._scene.history
        ops = [
            history.sent(
                who,
                batch.queues,
                uid,
                producer=f"{who}/{batch.address}",
                duplicate_id=batch.duplicate_id(uid),
            )
            for uid in batch.uids
        ]
        await client.send_many(batch.address, [batch.message(uid) for uid in batch.uids])
        for op in ops:
            history.send_ok(op)


async def damage_to_indexes(broker: BrokerNode, swarm: Swarm) -> None:
    """Damage the indexes, which spare a start the reading of whole segments: the broker must come up complete.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    rng = swarm.rng("indexes")
    swarm.count("seen.damaged_indexes", 0)
    if rng.random() >= SHARE:
        return
    await broker.serving()
    broker.node.kill()
    disk = broker.node.disk
    paths = [path for path in disk.files() if path.endswith(INDEX_SUFFIX) and disk.content(path)]
    for path in paths:
        _damage(disk, path, rng.choice(paths), rng)
    swarm.count("seen.damaged_indexes", len(paths))
    await broker.serving()


def _damage(disk: SimDisk, path: str, other: str, rng: random.Random) -> None:
    """Damage one bit or one sector of an index: lost, or with the bytes of another index."""
    content = disk.content(path)
    if rng.random() < 0.5:
        disk.flip_bit(path, rng.randrange(8 * len(content)))
        return
    start = rng.randrange(0, len(content), SECTOR_BYTES)
    size = len(content[start : start + SECTOR_BYTES])
    there = disk.content(other)[start : start + size] if rng.random() < 0.5 else b""
    disk.spoil(path, start, there.ljust(size, b"\0"))
