"""Entries of the delivery matrix: the options of a single message, and the fate of messages that come back."""

from __future__ import annotations

from typing import Any, ClassVar

import trio

from meshq.message import Message
from meshq.settings import AddressSettings
from qa.matrix.feature import Feature
from qa.matrix.stage import Stage

#: Seconds: longer than all that an entry does besides waiting.
SPAN_S = 10.0
DEAD = {"work": AddressSettings(dead_letter_address="dead")}


async def origins(stage: Stage, queue: str) -> list[tuple[bytes, str]]:
    """Return the messages that were moved to a queue, and the reasons."""
    found = []
    async with stage.consumer(queue) as consumer:
        while (message := await consumer.receive(timeout=0.5)) is not None:
            found.append((message.body, message.origin.reason if message.origin is not None else ""))
            await message.ack()
    return found


async def later(stage: Stage) -> tuple[list[bytes], list[bytes]]:
    """Return the messages that a queue delivers at once, and the messages that it delivers after the time."""
    at_once = await stage.drain("work")
    await trio.sleep(SPAN_S)
    return at_once, await stage.drain("work")


class Priority(Feature):
    """Of three messages the most urgent comes first, the least urgent last."""

    name = "priority"
    works = (b"high", b"usual", b"low")
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        messages = [Message(b"low", priority=1), Message(b"usual"), Message(b"high", priority=8)]
        await stage.send_many("work", messages)

    async def act(self, stage: Stage) -> Any:
        return await stage.drain("work")


class Delay(Feature):
    """A delayed message is not there at first, and there when its time has come."""

    name = "delay"
    works = ((), (b"later",))
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"later", delay=SPAN_S)

    async def act(self, stage: Stage) -> Any:
        return await later(stage)


class TimeToLive(Feature):
    """Of two messages the one whose time is over is gone."""

    name = "time to live"
    works = (b"long",)
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"short", ttl=SPAN_S)
        await stage.send("work", b"long", ttl=100 * SPAN_S)

    async def act(self, stage: Stage) -> Any:
        await trio.sleep(SPAN_S)
        return await stage.drain("work")


class ExpiryAddress(Feature):
    """A message that expires, before or after, goes to the expiry address and says why."""

    name = "expiry address"
    uses = ("time to live",)
    settings: ClassVar = {"work": AddressSettings(expiry_address="late")}
    works = ((b"before", "expired"), (b"after", "expired"))
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"before", ttl=1)
        await stage.send("work", b"after", ttl=SPAN_S)
        await trio.sleep(2)

    async def act(self, stage: Stage) -> Any:
        await trio.sleep(SPAN_S)
        return await origins(stage, "late")


class DeadLetters(Feature):
    """A message that is rejected, before or after, goes to the dead-letter address and says why."""

    name = "dead letters"
    settings: ClassVar = DEAD
    works = ((b"before", "rejected"), (b"after", "rejected"))
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        await stage.send_many("work", [b"before", b"after"])
        await self._reject(stage)

    async def act(self, stage: Stage) -> Any:
        await self._reject(stage)
        return await origins(stage, "dead")

    async def _reject(self, stage: Stage) -> None:
        async with stage.consumer("work", window=1) as consumer:
            if (message := await consumer.receive(timeout=1)) is not None:
                await message.reject()


class MaximumDeliveries(Feature):
    """Handed back twice before and once after, a message goes to the dead letters."""

    name = "maximum deliveries"
    uses = ("dead letters",)
    settings: ClassVar = {"work": AddressSettings(dead_letter_address="dead", max_delivery_attempts=3)}
    works = (0, ((b"a", "attempts"),))
    gone = (0, ())

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"a")
        await self._hand_back(stage, 2)

    async def act(self, stage: Stage) -> Any:
        await self._hand_back(stage, 1)
        return (await stage.queue("work")).ready, await origins(stage, "dead")

    async def _hand_back(self, stage: Stage, times: int) -> None:
        async with stage.consumer("work") as consumer:
            for _ in range(times):
                if (message := await consumer.receive(timeout=1)) is not None:
                    await message.nack()


class RedeliveryDelay(Feature):
    """A message that is handed back waits as long as the settings say."""

    name = "redelivery delay"
    settings: ClassVar = {"work": AddressSettings(redelivery_delay=SPAN_S)}
    works = ((), (b"a",))
    gone = ((), ())
    delay: ClassVar[float | None] = None

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"a")
        async with stage.consumer("work") as consumer:
            message = await consumer.receive(timeout=1)
            assert message is not None
            await message.nack(delay=self.delay)

    async def act(self, stage: Stage) -> Any:
        return await later(stage)


class DelayedReturn(RedeliveryDelay):
    """A message that is handed back waits as long as its consumer says."""

    name = "delay of who hands back"
    settings: ClassVar = {}
    delay = SPAN_S


class GrowingDelay(Feature):
    """The second time it is handed back, once before and once after, a message waits twice as long as the first."""

    name = "growing redelivery delay"
    uses = ("redelivery delay",)
    settings: ClassVar = {"work": AddressSettings(redelivery_delay=SPAN_S, redelivery_delay_multiplier=2)}
    works = ((), (b"a",))
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"a")
        await self._hand_back(stage)

    async def act(self, stage: Stage) -> Any:
        await trio.sleep(SPAN_S)
        await self._hand_back(stage)
        await trio.sleep(SPAN_S)
        return await later(stage)

    async def _hand_back(self, stage: Stage) -> None:
        async with stage.consumer("work") as consumer:
            if (message := await consumer.receive(timeout=1)) is not None:
                await message.nack()


class LongestDelay(GrowingDelay):
    """However fast it grows, a message that is handed back waits no longer than the settings say at most."""

    name = "longest redelivery delay"
    uses = ("growing redelivery delay",)
    settings: ClassVar = {
        "work": AddressSettings(
            redelivery_delay=SPAN_S, redelivery_delay_multiplier=100, max_redelivery_delay=2 * SPAN_S
        )
    }


class DeliveryCounts(Feature):
    """A message that is delivered again says so, and how often."""

    name = "delivery counts"
    works = ((b"seen", 2, True), (b"prefetched", 1, False))
    # The disk knows how far messages may have been handed over, and not that this one was not.
    kept = ((b"seen", 2, True), (b"prefetched", 2, True))
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        await stage.send_many("work", [b"seen", b"prefetched"])
        async with stage.consumer("work") as consumer:
            assert await consumer.receive(timeout=1) is not None

    async def act(self, stage: Stage) -> Any:
        async with stage.consumer("work") as consumer:
            got = [*await consumer.receive_many(2, timeout=1), *await consumer.receive_many(1, timeout=1)]
            return [(message.body, message.delivery_count, message.redelivered) for message in got]


class DuplicateIds(Feature):
    """A message that is sent again under its id is stored once."""

    name = "duplicate ids"
    works = (b"first",)
    gone = (b"again",)

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"first", duplicate_id="one")

    async def act(self, stage: Stage) -> Any:
        await stage.send("work", b"again", duplicate_id="one")
        return await stage.drain("work")


MESSAGES = (
    Priority(),
    Delay(),
    TimeToLive(),
    ExpiryAddress(),
    DeadLetters(),
    MaximumDeliveries(),
    RedeliveryDelay(),
    DelayedReturn(),
    GrowingDelay(),
    LongestDelay(),
    DeliveryCounts(),
    DuplicateIds(),
)
