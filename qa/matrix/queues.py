"""Entries of the delivery matrix: the queues of an address, and their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import trio

from meshq.client import Client
from meshq.errors import CallTimeoutError, NotFoundError, RefusedError
from meshq.settings import AddressSettings
from qa.matrix.feature import Feature
from qa.matrix.stage import Stage, bodies, held


class QueueFilter(Feature):
    """A queue with a filter takes the messages that match, before and after."""

    name = "queue filter"
    works = (b"emea", b"emea")
    left = (b"emea",)
    # The queue that comes into being on first use takes everything.
    gone = (b"us", b"emea")

    async def arrange(self, stage: Stage) -> None:
        await stage.client.create_queue(stage.at("emea"), filter="region = 'emea'")
        await self._send(stage)

    async def act(self, stage: Stage) -> Any:
        await self._send(stage)
        return await stage.drain("emea")

    async def _send(self, stage: Stage) -> None:
        for region in ("us", "emea"):
            await stage.send("emea", region.encode(), properties={"region": region})


class ConsumerFilter(Feature):
    """A consumer with a filter gets the messages that match, and the rest stays for others."""

    name = "consumer filter"
    works = ((b"9",), (b"1",))
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        for amount in (1, 9):
            await stage.send("work", b"%d" % amount, properties={"amount": amount})

    async def act(self, stage: Stage) -> Any:
        return await stage.drain("work", filter="amount > 5"), await stage.drain("work")


class UnnamedSubscription(Feature):
    """Two subscribers get every message each, before and after; their queues go with them."""

    name = "subscription without a name"
    non_durable = True
    works = (((b"1", b"2"), (b"1", b"2")), ())
    across = (((b"2",), (b"2",)), ())
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        for _ in range(2):
            await stage.keep(stage.subscribe("news"))
        await stage.send("news", b"1")

    async def act(self, stage: Stage) -> Any:
        # What nobody has subscribed to goes nowhere.
        await stage.client.create_address(stage.at("news"), routing="multicast")
        await stage.send("news", b"2")
        got = [await bodies(consumer) for consumer in stage.consumers]
        own = {consumer.statistics().queue for consumer in stage.consumers}
        for consumer in stage.consumers:
            await consumer.close()
        return got, sorted(own & {*await stage.client.queues()})


class NamedSubscription(Feature):
    """A name has one consumer, before and after, a second one is refused; its queue goes with the consumer."""

    name = "named subscription"
    non_durable = True
    works = (((b"1", b"2"),), "refused", ())
    across = (((b"2",),), "refused", ())
    gone = ((), "let in", ())

    async def arrange(self, stage: Stage) -> None:
        await stage.keep(stage.subscribe("news", name="desk"))
        await stage.send("news", b"1")

    async def act(self, stage: Stage) -> Any:
        await stage.client.create_address(stage.at("news"), routing="multicast")
        await stage.send("news", b"2")
        got = [await bodies(consumer) for consumer in stage.consumers]
        async with stage.another() as other:
            try:
                async with other.subscribe(stage.at("news"), name="desk"):
                    second = "let in"
            except RefusedError:
                second = "refused"
        for consumer in stage.consumers:
            await consumer.close()
        return got, second, await stage.queues()


class DurableSubscription(Feature):
    """A durable subscription gathers messages without a consumer, until it is deleted."""

    name = "durable subscription"
    works = ((b"before", b"after"), ())
    left = ((b"after",), ())
    # The subscription is another one, and was made too late for either.
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        async with stage.subscribe("news", name="archive", durable=True):
            pass
        await stage.send("news", b"before")

    async def act(self, stage: Stage) -> Any:
        # What nobody has subscribed to goes nowhere.
        await stage.client.create_address(stage.at("news"), routing="multicast")
        await stage.send("news", b"after")
        async with stage.subscribe("news", name="archive", durable=True) as consumer:
            got = await bodies(consumer)
        await stage.client.unsubscribe(stage.at("news"), "archive")
        return got, await stage.queues()


class SharedSubscription(Feature):
    """Two consumers of a shared subscription get half of the messages each."""

    name = "shared subscription"
    uses = ("durable subscription",)
    works = (2, 2)
    left = (2, 2)
    gone = (0, 0)

    async def arrange(self, stage: Stage) -> None:
        async with stage.subscribe("news", name="desk", durable=True, shared=True):
            pass

    async def act(self, stage: Stage) -> Any:
        await stage.client.create_address(stage.at("news"), routing="multicast")
        await stage.send_many("news", [b"%d" % number for number in range(4)])
        about: dict[str, Any] = {"name": "desk", "durable": True, "shared": True, "window": 2}
        async with stage.subscribe("news", **about) as one, stage.subscribe("news", **about) as two:
            return [len(await held(consumer)) for consumer in (one, two)]


class TemporaryQueue(Feature):
    """A temporary queue is its session's own, and goes with it."""

    name = "temporary queue"
    non_durable = True
    works = ((b"1",), "refused", 1)
    gone = ("not found", 0)

    async def arrange(self, stage: Stage) -> None:
        name = stage.notes["name"] = await stage.client.create_temporary_queue()
        await stage.send(name, b"1")

    async def act(self, stage: Stage) -> Any:
        name = stage.notes["name"]
        async with stage.another() as other:
            own = {name, await other.create_temporary_queue()}
            try:
                async with other.consumer(name):
                    raise AssertionError("it was let in")
            except NotFoundError:
                second = "not found"
            except RefusedError:
                second = "refused"
        left = len(own & {*await stage.client.queues()})
        return (await stage.drain(name), second, left) if second == "refused" else (second, left)


class Requests(Feature):
    """A request is answered; a request that waited too long fails, as does one without a responder."""

    name = "request and reply"
    uses = ("temporary queue",)
    works = (("answered",), 1, b"NEW")
    kept = (("not found",), 0, b"NEW")
    gone = ((), 0, b"NEW")

    async def arrange(self, stage: Stage) -> None:
        await stage.client.create_queue(stage.at("work"))
        try:
            await stage.request("work", b"old", timeout=1)
        except CallTimeoutError:
            return
        raise AssertionError("nobody was there to answer")

    async def act(self, stage: Stage) -> Any:
        told: list[str] = []
        async with stage.another() as server, trio.open_nursery() as nursery:
            await nursery.start(self._serve, stage, server, told)
            answer = await stage.request("work", b"new", timeout=5)
            nursery.cancel_scope.cancel()
        return told, stage.client.statistics().late_answers, answer.body

    async def _serve(
        self, stage: Stage, client: Client, told: list[str], *, task_status: trio.TaskStatus[None]
    ) -> None:
        async with client.consumer(stage.at("work")) as consumer:
            task_status.started()
            async for question in consumer:
                try:
                    await question.reply(question.body.upper(), durable=False)
                    said = "answered"
                except NotFoundError:
                    said = "not found"
                if question.body == b"old":
                    told.append(said)
                await question.ack()


class AutoDelete(Feature):
    """A queue made on first use stays while something waits, and goes when it is empty and left."""

    name = "auto-delete"
    settings: ClassVar = {"jobs": AddressSettings(auto_delete_queues=True)}
    works = (("jobs",), (b"2",), ())
    # It is empty, and stays until somebody has consumed from it.
    left = (("jobs",), (), ())
    gone = ((), (), ())

    async def arrange(self, stage: Stage) -> None:
        await stage.send_many("jobs", [b"1", b"2"])
        async with stage.consumer("jobs", window=1) as consumer:
            message = await consumer.receive(timeout=1)
            assert message is not None
            await message.ack(confirm=True)

    async def act(self, stage: Stage) -> Any:
        return await stage.queues(), await stage.drain("jobs"), await stage.queues()


class Diverted(Feature):
    """A divert of the messages to ``orders`` to ``audit``."""

    options: ClassVar[dict[str, Any]]
    #: What is sent before, and after.
    amounts: ClassVar[tuple[Sequence[int], Sequence[int]]] = ((1,), (2,))

    async def arrange(self, stage: Stage) -> None:
        orders, audit = stage.at("orders"), stage.at("audit")
        await stage.client.create_divert(audit, address=orders, forwarding_address=audit, **self.options)
        await self._send(stage, self.amounts[0])

    async def act(self, stage: Stage) -> Any:
        await self._send(stage, self.amounts[1])
        return await stage.drain("orders"), await stage.drain("audit")

    async def _send(self, stage: Stage, amounts: Sequence[int]) -> None:
        for amount in amounts:
            await stage.send("orders", b"%d" % amount, properties={"amount": amount})


class Divert(Diverted):
    """Messages to one address go to another one, too."""

    name = "divert"
    options: ClassVar[dict[str, Any]] = {}
    works = ((b"1", b"2"), (b"1", b"2"))
    left = ((b"2",), (b"2",))
    gone = ((b"2",), ())


class ExclusiveDivert(Diverted):
    """Diverted messages go to the other address only."""

    name = "exclusive divert"
    uses = ("divert",)
    options: ClassVar[dict[str, Any]] = {"exclusive": True}
    works = ((), (b"1", b"2"))
    left = ((), (b"2",))
    gone = ((b"2",), ())


class FilteredDivert(Diverted):
    """Messages that the divert's filter accepts go to the other address, too."""

    name = "filtered divert"
    uses = ("divert",)
    options: ClassVar[dict[str, Any]] = {"filter": "amount > 5"}
    amounts = ((1, 6), (2, 7))
    works = ((b"1", b"6", b"2", b"7"), (b"6", b"7"))
    left = ((b"2", b"7"), (b"7",))
    gone = ((b"2", b"7"), ())


class Pause(Feature):
    """A paused queue takes messages and gives none; resumed it gives all of them."""

    name = "pause and resume"
    works = ((), (b"1", b"2"))
    left = ((), (b"2",))
    # The queue that comes into being on first use is not paused.
    gone = ((b"2",), ())

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"1")
        await stage.client.pause_queue(stage.at("work"))

    async def act(self, stage: Stage) -> Any:
        await stage.send("work", b"2")
        paused = await stage.drain("work")
        await stage.client.resume_queue(stage.at("work"))
        return paused, await stage.drain("work")


class Purge(Feature):
    """Purged messages do not come again; later messages do."""

    name = "purge"
    works = (b"3",)
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        await stage.send_many("work", [b"1", b"2"])
        await stage.client.purge_queue(stage.at("work"))
        await stage.send("work", b"3")

    async def act(self, stage: Stage) -> Any:
        return await stage.drain("work")


QUEUES = (
    QueueFilter(),
    ConsumerFilter(),
    UnnamedSubscription(),
    NamedSubscription(),
    DurableSubscription(),
    SharedSubscription(),
    TemporaryQueue(),
    Requests(),
    AutoDelete(),
    Divert(),
    ExclusiveDivert(),
    FilteredDivert(),
    Pause(),
    Purge(),
)
