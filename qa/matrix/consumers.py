"""Entries of the delivery matrix: the distribution among a queue's consumers, and the calls of operators."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from meshq.errors import NotFoundError
from meshq.message import Message
from meshq.settings import AddressSettings
from qa.matrix.feature import Feature
from qa.matrix.messages import DEAD, origins
from qa.matrix.stage import QUIET_S, Stage, bodies, held


class Groups(Feature):
    """Two groups go to one consumer each, and the messages of a group come in their order."""

    name = "message groups"
    works = ((b"a2", b"a4", b"a5"), (b"b1", b"b3", b"b6"))
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        names = ("a2", "b1", "b3", "a4", "a5", "b6")
        await stage.send_many("work", [Message(name.encode(), group=name[0]) for name in names])

    async def act(self, stage: Stage) -> Any:
        async with stage.consumer("work", window=1) as one, stage.consumer("work") as two:
            # The first has room for one message, and with it gets that message's group.
            others = await bodies(two)
            return await bodies(one), others


class GroupRebalance(Feature):
    """When a second consumer joins, groups that the first one had are given anew."""

    name = "group rebalance"
    uses = ("message groups",)
    settings: ClassVar = {"work": AddressSettings(default_group_rebalance=True)}
    works = ((b"a1", b"b1"), ((b"a2",), (b"b2",)))
    gone = ((), ((), ()))

    async def arrange(self, stage: Stage) -> None:
        messages = [Message(name.encode(), group=name[0]) for name in ("a1", "b1", "a2", "b2")]
        await stage.send_many("work", messages)

    async def act(self, stage: Stage) -> Any:
        async with stage.consumer("work", window=2) as one:
            first = [await one.receive(timeout=1) for _ in range(2)]
            taken = [delivery for delivery in first if delivery is not None]
            async with stage.consumer("work") as two:
                if taken:
                    await one.ack(*taken, confirm=True)
                shares = sorted([await held(consumer) for consumer in (one, two)])
                return [delivery.body for delivery in taken], shares


class ConsumerPriority(Feature):
    """The consumer with the higher priority is served first, until its window is full."""

    name = "consumer priority"
    works = ((b"0",), (b"1", b"2"), (b"3",))
    gone = ((), (b"1", b"2"), (b"3",))

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"0")

    async def act(self, stage: Stage) -> Any:
        async with stage.consumer("work") as low:
            alone = await bodies(low)
            async with stage.consumer("work", priority=5, window=2) as high:
                await stage.send_many("work", [b"1", b"2", b"3"])
                return alone, await held(high), await held(low)


class ExclusiveConsumer(Feature):
    """An exclusive consumer is served alone, and another consumer after it."""

    name = "exclusive consumer"
    works = ((b"0", b"1", b"2"), (), (b"3",))
    gone = ((b"1", b"2"), (), (b"3",))
    options: ClassVar[dict[str, Any]] = {"exclusive": True}

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"0")

    async def act(self, stage: Stage) -> Any:
        async with stage.consumer("work", **self.options) as first, stage.consumer("work") as second:
            await stage.send_many("work", [b"1", b"2"])
            alone, meanwhile = await bodies(first), await bodies(second)
            await first.close()
            await stage.send("work", b"3")
            return alone, meanwhile, await bodies(second)


class ExclusiveByDefault(ExclusiveConsumer):
    """Where the settings say so, every consumer is an exclusive one: the first is served, then the next."""

    name = "exclusive by default"
    settings: ClassVar = {"work": AddressSettings(default_exclusive=True)}
    options: ClassVar[dict[str, Any]] = {}


class Browsing(Feature):
    """A browser sees all messages of a queue, and takes none."""

    name = "browsing"
    works = ((b"1", b"2", b"3"), 3, ((b"1", 1), (b"2", 1), (b"3", 1)))
    gone = ((b"3",), 1, ((b"3", 1),))

    async def arrange(self, stage: Stage) -> None:
        await stage.send_many("work", [b"1", b"2"])
        async with stage.consumer("work", browse=True) as looking:
            assert [delivery.body async for delivery in looking] == [b"1", b"2"]

    async def act(self, stage: Stage) -> Any:
        await stage.send("work", b"3")
        async with stage.consumer("work", browse=True) as looking:
            seen = [delivery.body async for delivery in looking]
        left = (await stage.queue("work")).ready
        taken = []
        async with stage.consumer("work") as consumer:
            while (delivery := await consumer.receive(timeout=QUIET_S)) is not None:
                taken.append((delivery.body, delivery.delivery_count))
                await delivery.ack()
        return seen, left, taken


class LastValue(Feature):
    """Of the messages with one value of the key a queue keeps the newest."""

    name = "last value"
    settings: ClassVar = {"work": AddressSettings(default_last_value_key="stock")}
    works = (b"B1", b"A3")
    gone = (b"A3",)

    async def arrange(self, stage: Stage) -> None:
        for price in ("A1", "A2", "B1"):
            await self._send(stage, price)

    async def act(self, stage: Stage) -> Any:
        await self._send(stage, "A3")
        return await stage.drain("work")

    async def _send(self, stage: Stage, price: str) -> None:
        await stage.send("work", price.encode(), properties={"stock": price[0]})


class Moving(Feature):
    """Messages that an operator moves, before and after, are in the other queue, and the rest stays."""

    name = "moving messages"
    works = ((b"1", b"2"), (b"8", b"9"))
    gone = ((b"2",), (b"9",))

    async def arrange(self, stage: Stage) -> None:
        await self._send_and_move(stage, (1, 8))

    async def act(self, stage: Stage) -> Any:
        await self._send_and_move(stage, (2, 9))
        return await stage.drain("work"), await stage.drain("aside")

    async def _send_and_move(self, stage: Stage, numbers: tuple[int, int]) -> None:
        for number in numbers:
            await stage.send("work", b"%d" % number, properties={"n": number})
        await stage.client.move_messages(stage.at("work"), stage.at("aside"), filter="n > 5")


class Redrive(Feature):
    """Dead letters that are sent back, before and after, are where they were, and are dead letters no more."""

    name = "sending dead letters back"
    uses = ("dead letters",)
    settings: ClassVar = DEAD
    works = ((b"a", b"b"), ())
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        await stage.send_many("work", [b"a", b"b"])
        async with stage.consumer("work") as consumer:
            for _ in range(2):
                message = await consumer.receive(timeout=1)
                assert message is not None
                await message.reject()
            await stage.client.flush()
        await stage.client.redrive(stage.at("dead"), limit=1)

    async def act(self, stage: Stage) -> Any:
        with suppress(NotFoundError):
            # Nothing has died yet in a broker that has forgotten everything.
            await stage.client.redrive(stage.at("dead"))
        return await stage.drain("work"), await stage.drain("dead")


class SettingsAtRunTime(Feature):
    """Settings that are changed while the broker runs hold from then on."""

    name = "settings at run time"
    uses = ("dead letters",)
    works = ((b"a", "rejected"),)
    left = works
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        await stage.client.set_address_settings(stage.at("work"), stage.settled(DEAD["work"]))

    async def act(self, stage: Stage) -> Any:
        await stage.send("work", b"a")
        async with stage.consumer("work") as consumer:
            message = await consumer.receive(timeout=1)
            assert message is not None
            await message.reject()
        return await origins(stage, "dead")


CONSUMERS = (
    Groups(),
    GroupRebalance(),
    ConsumerPriority(),
    ExclusiveConsumer(),
    ExclusiveByDefault(),
    Browsing(),
    LastValue(),
    Moving(),
    Redrive(),
    SettingsAtRunTime(),
)
