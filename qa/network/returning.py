"""Replay in a network at peace: messages go back to consumers, and come to rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Final

import trio

from meshq import Consumer, Message
from meshq.limits import NETWORK_RETURNS_MAX
from qa.network.shape import LEFT, QUEUES, REST
from qa.network.stage import NetworkStage

#: Simulated seconds in which what is wanted comes, or everything comes to rest.
BOUND_S: Final = 10.0
REST_S: Final = 40.0
#: Messages of each half that are left where nobody consumes.
EACH: Final = 3


class Returning:
    """The checks of replay in one network."""

    def __init__(self, stage: NetworkStage) -> None:
        self._stage = stage
        self._rng = stage.simulation.swarm.rng("returning")

    async def check(self) -> None:
        """Check that messages come to rest; and, where all connectors have replay, that a message without a consumer
        goes back to a broker with one."""
        await self._check_rest()
        if self._stage.shape.replay == "all":
            await self._check_left(LEFT[0], kept=False)
            await self._check_left(LEFT[1], kept=True)
            if self._stage.shape.free:
                await self._check_all_come()

    async def _consuming(
        self, stack: AsyncExitStack, name: str, queue: str, filter: str | None, window: int = 100
    ) -> Consumer:
        client = await stack.enter_async_context(self._stage.nodes[name].broker.client())
        return await stack.enter_async_context(client.consumer(queue, filter=filter, window=window))

    async def _send(self, name: str, queue: str, halves: Iterable[int]) -> dict[str, int]:
        """Send a message of each of these halves; return its half by its body."""
        sent = {self._stage.new_uid(name): half for half in halves}
        async with self._stage.nodes[name].broker.client() as client:
            for uid, half in sent.items():
                await client.send(queue, Message(uid.encode(), duplicate_id=uid, properties={"half": half}))
        return sent

    async def _places(self, queue: str) -> dict[str, tuple[str, int]]:
        """Where each message of a queue is, and how often it has gone back."""
        found: dict[str, tuple[str, int]] = {}
        for node in self._stage.nodes.values():
            async with node.broker.client() as client:
                if queue not in await client.queues():
                    continue
                async with client.consumer(queue, browse=True) as browser:
                    async for delivery in browser:
                        found[bytes(delivery.body).decode()] = node.name, delivery._broker_path.returns
        return found

    def _carried(self) -> int:
        stage = self._stage
        return sum(
            one.carried
            for node in stage.nodes.values()
            for connector in stage.shape.connectors(node.name)
            for one in node.broker.network(connector.name).bridges()
        )

    async def _check_rest(self) -> None:
        """Check that messages which no consumer accepts come to rest."""
        stage = self._stage
        async with AsyncExitStack() as stack:
            for name in self._rng.sample(stage.shape.names, 2):
                await self._consuming(stack, name, REST, "half = 1")
            await trio.sleep(2)
            for name in stage.shape.names:
                await self._send(name, REST, [0])
            with trio.move_on_after(REST_S):
                before = -1
                while before != (before := self._carried()):  # noqa: ASYNC110 - looking costs nothing here
                    await trio.sleep(3)
                return
            stage.wrong("W9", f"what nobody accepts is still under way after {REST_S:g} s, {before} in all")

    async def _check_left(self, queue: str, *, kept: bool) -> None:
        """Check messages whose consumer goes: a neighbour wants a half, and the other half has no consumer, or is
        ``kept`` by a busy one where it is."""
        stage = self._stage
        home, away = self._rng.choice([*stage.shape.edges, *((other, one) for one, other in stage.shape.edges)])
        async with AsyncExitStack() as stack:
            await self._consuming(stack, away, queue, None)
            await trio.sleep(1)
            sent = await self._send(home, queue, (0, 1) * EACH)
            await self._until_at(away, queue, sent)
        async with AsyncExitStack() as stack:
            if kept:
                keeper = await self._consuming(stack, away, queue, "half = 0", window=1)
                await keeper.receive_many(1, timeout=0.1)
            consumer = await self._consuming(stack, home, queue, None if kept else "half = 1")
            got = Counter[int]()
            with trio.move_on_after(BOUND_S):
                while got[1] < EACH:
                    for delivery in await consumer.receive_many(100, timeout=0.5):
                        stage.judge(home, delivery)
                        got[sent[bytes(delivery.body).decode()]] += 1
                        await consumer.ack(delivery, confirm=True)
            await trio.sleep(1)
            stage.seen("replayed_in_peace", got[1])
            if got != {1: EACH}:
                stage.wrong(
                    "W9", f"from {away}, where a half is wanted or not, to {home} came {dict(got)} of {EACH} each"
                )
            moved = {uid: place for uid, place in (await self._places(queue)).items() if place != (away, 0)}
            if moved and stage.shape.is_tree:
                stage.wrong("W9", f"what only {away} accepts, or nobody, went away from there: {moved}")

    async def _until_at(self, name: str, queue: str, sent: Iterable[str]) -> None:
        with trio.move_on_after(BOUND_S):
            while True:
                there = {uid for uid, place in (await self._places(queue)).items() if place[0] == name}
                if there.issuperset(sent):
                    return
                await trio.sleep(0.2)

    async def _check_all_come(self) -> None:
        """Wherever messages wait, they come to who wants all, unless they have gone back as often as they may."""
        stage = self._stage
        name = self._rng.choice(stage.shape.names)
        async with AsyncExitStack() as stack:
            consumers = [await self._consuming(stack, name, queue, None) for queue in (*QUEUES, REST)]
            end = trio.current_time() + BOUND_S
            while trio.current_time() < end:
                for consumer in consumers:
                    for delivery in await consumer.receive_many(1_000, timeout=0.2):
                        end = trio.current_time() + BOUND_S
                        uid = bytes(delivery.body).decode()
                        stage.judge(name, delivery)
                        stage.acknowledged[uid] += 1
                        await consumer.ack(delivery, confirm=True)
                        stage.consumed[uid] += 1
                        stage.seen("brought_back", int(delivery._broker_path.returns > 0))
            for queue in (*QUEUES, REST):
                places = (await self._places(queue)).items()
                left = {uid: place for uid, place in places if place[1] < NETWORK_RETURNS_MAX - len(stage.shape.names)}
                if left:
                    stage.wrong("W9", f"of {queue} {left} did not come to {name}")
