"""The producers of a meeting."""

from __future__ import annotations

from typing import Any, Final

import trio

from meshq.client import Client
from meshq.errors import MeshqError
from qa.pairs.accounts import Fate
from qa.pairs.features import KEY
from qa.pairs.scene import MeetingScene

PRODUCERS: Final = 2
#: Messages of each producer.
EACH: Final = 12
SPAN_S: Final = 3.0
#: Values of the property of which a queue may keep the newest message.
KEYS: Final = 8
#: A bridge takes one of so many parts.
PARTS: Final = 3


class Producers:
    """Send messages to ``orders``, with all that the features of a row ask for."""

    def __init__(self, scene: MeetingScene) -> None:
        self._scene = scene
        self._sent = 0

    async def produce(self, producer: int) -> None:
        """Send the messages of one producer.  Checkpoint: always.  Cancellation: ends it."""
        scene = self._scene
        async with scene.client(scene.first) as client:
            for number in range(EACH):
                bodies = [b"%d of %d" % (number, producer)]
                if scene.on("transactions") or scene.on("two-phase"):
                    bodies.append(b"%d of %d, too" % (number, producer))
                if scene.often("large bodies", 0.2):
                    bodies[0] += b" " * 100_000
                await self._send(client, bodies)
                await scene.rest(0.5)

    def _about(self, body: bytes) -> dict[str, Any]:
        """Draw the options with which a message is sent, and open its account."""
        scene, chance = self._scene, self._scene.chance
        self._sent += 1
        properties = {"side": self._sent % 2, "part": chance.randrange(PARTS), KEY: f"key {self._sent % KEYS}"}
        about: dict[str, Any] = {"properties": properties, "duplicate_id": f"id {body[:40]!r}"}
        if scene.on("priority"):
            about["priority"] = chance.randrange(10)
        if scene.on("groups"):
            about["group"] = f"group {chance.randrange(3)}"
        if scene.often("delay"):
            about["delay"] = chance.uniform(0.1, SPAN_S)
        if scene.often("expiry"):
            about["ttl"] = chance.uniform(0.1, SPAN_S)
        if scene.often("not durable"):
            about["durable"] = False
        scene.accounts.fates[body] = Fate(
            durable=about.get("durable", True),
            key=str(properties[KEY]),
            seen_from=trio.current_time() + about.get("delay", 0.0),
        )
        return about

    async def _send(self, client: Client, bodies: list[bytes]) -> None:
        scene = self._scene
        abouts = [self._about(body) for body in bodies]
        if scene.often("transactions", 0.5) or scene.often("two-phase", 0.5):
            await self._send_together(client, bodies, abouts)
            return
        for body, about in zip(bodies, abouts, strict=True):
            for _ in range(2 if scene.often("duplicate ids") else 1):
                nodes = scene.accounts.fates[body].nodes
                nodes |= _node_of(client)
                try:
                    await client.send("orders", body, **about)
                except MeshqError:
                    continue
                finally:
                    # The node of the confirm: it was sent again there if the first one has died.
                    nodes |= _node_of(client)
                self._confirmed(body, about)

    def _confirmed(self, body: bytes, about: dict[str, Any]) -> None:
        fate = self._scene.accounts.fates[body]
        if not fate.confirmed:
            fate.confirmed = True
            fate.seen_until = trio.current_time() + about.get("delay", 0.0)

    async def _send_together(self, client: Client, bodies: list[bytes], abouts: list[dict[str, Any]]) -> None:
        scene = self._scene
        roll_back = scene.chance.random() < 0.3
        prepare = scene.on("two-phase") and (not scene.on("transactions") or scene.chance.random() < 0.5)
        xid = b"xid " + bodies[0][:20] if prepare else None
        try:
            async with client.transaction(xid) as transaction:
                for body, about in zip(bodies, abouts, strict=True):
                    await transaction.send("orders", body, **about)
                if prepare:
                    await transaction.prepare()
                if roll_back:
                    await transaction.rollback()
                else:
                    await transaction.commit()
        except MeshqError as error:
            if error.outcome != "not_done":
                await self._decide(client, xid)
            return
        for body, about in zip(bodies, abouts, strict=True):
            scene.accounts.fates[body].refused = roll_back
            if not roll_back:
                self._confirmed(body, about)

    async def _decide(self, client: Client, xid: bytes | None) -> None:
        """Roll back a prepared transaction whose end is not known; otherwise it waits for ever."""
        if xid is None:
            return
        try:
            await client.rollback(xid)
        except MeshqError:
            # It is not prepared.
            return


def _node_of(client: Client) -> set[bytes]:
    node = client.statistics().node_id
    return set() if node is None else {node}
