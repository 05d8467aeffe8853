"""Messages that expire while another node may have them: the last trial of a mesh.

One node sends to a queue of another one, whose answers are lost.  Each message must come out once: at the queue, or at
an expiry address of one of the two.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import trio

from meshq.client import Client
from meshq.settings import AddressSettings
from meshq.testing import Swarm
from qa.mesh.faults import MeshFaults
from qa.mesh.node import LINKED_S, MeshNode

#: The share of seeds in which it is tried.
SHARE: Final = 0.5
#: Where is sent, and where what has expired goes.
FADING: Final = "fading"
FADED: Final = "faded"
MESSAGES: Final = 20
#: Times to live: over before the link is given up, after it, and when it is back.
TTLS_S: Final = (0.5, 3.0, 5.0, 8.0)
#: For how long no answer comes: less than after which a link is given up, and more.
DEAF_S: Final = (1.0, 6.0)


async def expire_in_doubt(nodes: list[MeshNode], faults: MeshFaults, swarm: Swarm) -> None:
    """Try it, and leave nothing behind.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    rng = swarm.rng("doubt")
    swarm.count("seen.expired_in_doubt", 0)
    if rng.random() >= SHARE:
        return
    here, there = rng.sample(nodes, 2)
    settings = AddressSettings(expiry_address=FADED, auto_create_queues=False)
    for node in (here, there):
        async with node.client() as client:
            await client.create_queue(FADED)
            await client.set_address_settings(FADING, settings)
            if node is there:
                await client.create_queue(FADING)
    await trio.sleep(LINKED_S)
    sent = [b"%d" % number for number in range(MESSAGES)]
    async with here.client() as client:
        await client.send(FADING, sent[0], ttl=rng.choice(TTLS_S))
        faults.fabric.cut(there.place, here.place)
        for body in sent[1:]:
            await client.send(FADING, body, ttl=rng.choice(TTLS_S))
            await trio.sleep(0.1 * rng.random())
    await trio.sleep(rng.choice(DEAF_S))
    if rng.random() < 0.5:
        # What was handed over it knows by the mark of delivery only.
        here.node.kill()
        await here.serving()
        await trio.sleep(rng.choice(DEAF_S))
    faults.mend()
    await trio.sleep(max(TTLS_S) + 2 * LINKED_S)
    found: Counter[bytes] = Counter()
    for node in (here, there):
        async with node.client() as client:
            for queue in await client.queues():
                if queue in (FADING, FADED):
                    late = await _emptied(client, queue)
                    swarm.count("seen.expired_in_doubt", len(late))
                    found.update(late)
                    await client.delete_queue(queue)
    for body in sent:
        found[body] -= 1
    here.left("messages that were in doubt and came out twice, or not", sum(map(abs, found.values())))


async def _emptied(client: Client, queue: str) -> list[bytes]:
    bodies: list[bytes] = []
    async with client.consumer(queue) as consumer:
        while batch := await consumer.receive_many(MESSAGES, timeout=1.0):
            bodies += [delivery.body for delivery in batch]
            await consumer.ack(*batch, confirm=True)
    return bodies
