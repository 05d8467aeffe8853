"""Messages of the simulated chain which are stranded, and the consumer which goes from node to node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Final

import trio

from meshq.client import Client
from meshq.errors import MeshqError
from meshq.settings import AddressSettings
from qa.chain.node import PATIENCE_S, HopNode
from qa.chain.shape import Shape

#: A queue that all nodes with the other queue have, too.
STRANDED: Final = "stranded"
#: Seconds for which the queue of a node has had no consumer when its messages go; and for which a consumer stays.
DELAYS_S: Final = (0.0, 0.3)
STAYS_S: Final = (0.3, 2.0)
STRANDED_SIGHTS: Final = ("rescued", "rescued_from_afar", "out_of_reach", "roamed")


class ChainStranded:
    """The stranded messages of a seed, and their consumer."""

    def __init__(self, shape: Shape, rng: Random, client: Callable[[str], Client]) -> None:
        """``client``: makes a client that stays with a node."""
        self._shape = shape
        self._rng = rng
        self._client = client
        self._settings = AddressSettings(
            auto_create_queues=False, redistribution_delay=rng.choice(DELAYS_S), max_delivery_attempts=math.inf
        )
        #: What was met, and how often.
        self.sights: Counter[str] = Counter(dict.fromkeys(STRANDED_SIGHTS, 0))
        #: Messages that were received and acknowledged in peace.
        self.rescued: Counter[bytes] = Counter()

    def address_settings(self) -> dict[str, AddressSettings]:
        """The settings of the nodes for these messages."""
        return {STRANDED: self._settings}

    async def roam(self, closing: Callable[[], bool]) -> None:
        """Consume at one node after the other, and acknowledge nothing.  Checkpoint: always.  Cancellation: ends it."""
        while not closing():
            place = self._rng.choice(self._shape.owners)
            stay = self._rng.choice(STAYS_S)
            with suppress(MeshqError):
                async with self._client(place) as client, client.consumer(STRANDED) as consumer:
                    self.sights["roamed"] += len(await consumer.receive_many(1, timeout=stay))
                    await trio.sleep(stay)
            await trio.sleep(0.2)

    async def rescue(self, nodes: Mapping[str, HopNode], crossed: Callable[[], int]) -> list[str]:
        """Consume at one node in peace: messages that are near enough come there by the shortest way, and others stay.

        ``crossed``: how many links messages have crossed.  Return what was wrong.
        Checkpoint: always.  Cancellation: messages may be rescued or not.
        """
        place = self._rng.choice(self._shape.owners)
        away = {name: self._shape.distances(name).get(place, -1) for name in self._shape.owners}
        if self._shape.mode == "strict":
            # What was dealt to a node stays there.
            away = {name: steps and -1 for name, steps in away.items()}
        before = {name: await nodes[name].waiting(STRANDED) for name in away}
        links = crossed()
        with trio.move_on_after(PATIENCE_S):
            async with self._client(place) as client, client.consumer(STRANDED) as consumer:
                while self.rescued.total() < sum(before[name] for name, steps in away.items() if steps >= 0):
                    batch = await consumer.receive_many(100)
                    self.rescued.update(delivery.body for delivery in batch)
                    await consumer.ack(*batch, confirm=True)
        left = {name: await nodes[name].waiting(STRANDED) for name in away}
        wrong = [
            f"{left[name]} of {before[name]} stranded messages of {name} are there, {steps} links from {place}"
            for name, steps in away.items()
            if left[name] != (before[name] if steps < 0 else 0)
        ]
        wanted = sum(before[name] * steps for name, steps in away.items() if steps > 0)
        if not wrong and crossed() - links != wanted:
            wrong.append(f"stranded messages crossed {crossed() - links} links to {place}, not {wanted}: {before}")
        for name, steps in away.items():
            sight = "out_of_reach" if steps < 0 else "rescued" if steps == 1 else "rescued_from_afar"
            self.sights[sight] += before[name] if steps else 0
        return wrong
