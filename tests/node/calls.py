"""Every public call of a client that waits, as something that can be made, cancelled, and looked at afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import trio

from meshq import (
    AddressSettings,
    Consumer,
    Delivery,
    Message,
    MessageId,
    NotFoundError,
    Producer,
)
from tests.node.ground import Ground

Prepare = Callable[[Ground], Awaitable[Any]]
Make = Callable[[Ground, Any], Awaitable[object]]
#: What can be seen afterwards; one of a case's outcomes.
Look = Callable[[Ground], Awaitable[object]]


@attrs.frozen(kw_only=True)
class Call:
    """A call.  Whenever it is cancelled, what ``look`` then sees is one of ``outcomes``; if it ends, the last one."""

    #: Class and method.
    name: str
    make: Make
    look: Look
    outcomes: tuple[object, ...]
    prepare: Prepare | None = None


async def count(ground: Ground, queue: str = "q") -> object:
    """Ready and delivering messages of a queue; None if there is no such queue."""
    try:
        found = await ground.client.queue(queue)
    except NotFoundError:
        return None
    return found.ready + found.delivering + found.scheduled + found.delayed


async def _exists(ground: Ground, queue: str) -> bool:
    return queue in await ground.client.queues()


async def _nothing(ground: Ground) -> object:
    return None


async def filled(ground: Ground) -> None:
    await ground.client.send_many("q", [b"a", b"b", b"c"])


async def emptied(ground: Ground) -> None:
    # A client keeps a producer of its own for each address that it has sent to.
    await filled(ground)
    await ground.client.purge_queue("q")


async def received(ground: Ground) -> tuple[Consumer, Delivery]:
    await filled(ground)
    consumer = await ground.keep(ground.client.consumer("q"))
    message = await consumer.receive()
    assert message is not None
    return consumer, message


async def settled(ground: Ground) -> object:
    """Whether the message that was held is ready again, gone, or still held."""
    found = await ground.client.queue("q")
    return found.acknowledged, found.rejected, found.delayed


async def _open_producer(ground: Ground) -> Producer:
    producer = ground.client.producer("q", window=2)
    return await ground.keep(producer)


def _send_three(confirm: bool) -> Make:
    async def send(ground: Ground, producer: Producer) -> None:
        for body in (b"a", b"b", b"c"):
            await producer.send(body)
        if confirm:
            await producer.flush()

    return send


async def _settings(ground: Ground) -> object:
    return (await ground.client.address_settings("a")).max_delivery_attempts


async def _set(ground: Ground) -> None:
    await ground.client.set_address_settings("a", AddressSettings(max_delivery_attempts=3))


async def _linked_once(ground: Ground) -> None:
    """Messages for another node could wait here."""
    node = ground.broker._node
    assert node is not None
    node.core.definitions.forward_queue(f"$meshq.cluster.mesh.{'0' * 32}")


async def _two_queues(ground: Ground) -> None:
    await filled(ground)
    await ground.client.create_queue("other")


async def _moved(ground: Ground) -> object:
    return await count(ground), await count(ground, "other")


async def _moved_away(ground: Ground) -> None:
    await _two_queues(ground)
    await ground.client.move_messages("q", "other")


async def _paused(ground: Ground) -> object:
    return (await ground.client.queue("q")).paused


async def _resume_bridge(ground: Ground) -> None:
    # It begins paused.
    await ground.client.resume_bridge("b")


async def _bridge_paused(ground: Ground) -> object:
    (bridge,) = await ground.client.bridges()
    return bridge.state == "paused"


async def _pause(ground: Ground) -> None:
    await ground.client.create_queue("q")
    await ground.client.pause_queue("q")


async def _answering(ground: Ground) -> None:
    async def answer(consumer: Consumer) -> None:
        async for question in consumer:
            await question.reply(b"answer")
            await question.ack()

    await ground.client.create_queue("questions")
    ground.nursery.start_soon(answer, await ground.keep(ground.other.consumer("questions")))


async def _question(ground: Ground) -> Delivery:
    await ground.client.send("answers", b"")
    await ground.client.purge_queue("answers")
    await ground.client.send("q", b"question", reply_to="answers")
    consumer = await ground.keep(ground.client.consumer("q"))
    message = await consumer.receive()
    assert message is not None
    return message


async def _use_block(block: Any) -> None:
    async with block:
        pass


async def _diverts(ground: Ground) -> object:
    return [divert.name for divert in await ground.client.diverts()]


async def _diverted(ground: Ground) -> None:
    await ground.client.create_divert("d", address="q", forwarding_address="other")


async def _with_a_cursor(ground: Ground) -> None:
    await ground.client.create_queue("q")
    async with ground.client.cursor("q", "c"):
        pass


async def _cursors(ground: Ground) -> list[str]:
    return [cursor.name for cursor in await ground.client.cursors()]


async def _subscribed(ground: Ground) -> None:
    async with ground.client.subscribe("news", name="mine", durable=True):
        pass


CALLS: Final = (
    Call(
        name="Client.send",
        prepare=emptied,
        make=lambda ground, _: ground.client.send("q", b"x"),
        look=count,
        outcomes=(0, 1),
    ),
    Call(
        name="Client.send_many",
        prepare=emptied,
        make=lambda ground, _: ground.client.send_many("q", [b"x", Message(b"y", priority=9)]),
        look=count,
        # Runs of one call are sent one by one: those that were not sent yet are not.
        outcomes=(0, 1, 2),
    ),
    Call(
        name="Client.request",
        prepare=_answering,
        make=lambda ground, _: ground.client.request("questions", b"?", timeout=5),
        look=lambda ground: count(ground, "questions"),
        outcomes=(1, 0),
    ),
    Call(name="Client.flush", prepare=filled, make=lambda ground, _: ground.client.flush(), look=count, outcomes=(3,)),
    Call(
        name="Client.__aenter__ Client.__aexit__ Client.close",
        make=lambda ground, _: _use_block(ground.another()),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(
        name="Client.create_address",
        make=lambda ground, _: ground.client.create_address("news", "multicast"),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(
        name="Client.create_queue",
        make=lambda ground, _: ground.client.create_queue("q"),
        look=lambda ground: _exists(ground, "q"),
        outcomes=(False, True),
    ),
    Call(
        name="Client.create_temporary_queue",
        make=lambda ground, _: ground.client.create_temporary_queue(),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(
        name="Client.unsubscribe",
        prepare=_subscribed,
        make=lambda ground, _: ground.client.unsubscribe("news", "mine"),
        look=lambda ground: _exists(ground, "news::mine"),
        outcomes=(True, False),
    ),
    Call(
        name="Client.delete_queue",
        prepare=filled,
        make=lambda ground, _: ground.client.delete_queue("q"),
        look=count,
        outcomes=(3, None),
    ),
    Call(
        name="Client.purge_queue",
        prepare=filled,
        make=lambda ground, _: ground.client.purge_queue("q"),
        look=count,
        outcomes=(3, 0),
    ),
    Call(name="Client.set_address_settings", make=lambda ground, _: _set(ground), look=_settings, outcomes=(10, 3)),
    Call(
        name="Client.remove_address_settings",
        prepare=_set,
        make=lambda ground, _: ground.client.remove_address_settings("a"),
        look=_settings,
        outcomes=(3, 10),
    ),
    Call(
        name="Client.address_settings",
        make=lambda ground, _: ground.client.address_settings("a"),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(
        name="Client.move_messages",
        prepare=_two_queues,
        make=lambda ground, _: ground.client.move_messages("q", "other"),
        look=_moved,
        outcomes=((3, 0), (0, 3)),
    ),
    Call(
        name="Client.redrive",
        prepare=_moved_away,
        make=lambda ground, _: ground.client.redrive("other"),
        look=_moved,
        outcomes=((0, 3), (3, 0)),
    ),
    Call(
        name="Client.give_back",
        prepare=_linked_once,
        make=lambda ground, _: ground.client.give_back("0" * 32),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(
        name="Client.pause_queue",
        prepare=filled,
        make=lambda ground, _: ground.client.pause_queue("q"),
        look=_paused,
        outcomes=(False, True),
    ),
    Call(
        name="Client.resume_queue",
        prepare=_pause,
        make=lambda ground, _: ground.client.resume_queue("q"),
        look=_paused,
        outcomes=(True, False),
    ),
    Call(
        name="Client.queue", prepare=filled, make=lambda ground, _: ground.client.queue("q"), look=count, outcomes=(3,)
    ),
    Call(name="Client.cursors", make=lambda ground, _: ground.client.cursors(), look=_nothing, outcomes=(None,)),
    Call(
        name="Client.delete_cursor",
        prepare=_with_a_cursor,
        make=lambda ground, _: ground.client.delete_cursor("q", "c"),
        look=_cursors,
        outcomes=(["c"], []),
    ),
    Call(name="Client.queues", make=lambda ground, _: ground.client.queues(), look=_nothing, outcomes=(None,)),
    Call(
        name="Client.create_divert",
        make=lambda ground, _: _diverted(ground),
        look=_diverts,
        outcomes=([], ["d"]),
    ),
    Call(
        name="Client.delete_divert",
        prepare=_diverted,
        make=lambda ground, _: ground.client.delete_divert("d"),
        look=_diverts,
        outcomes=(["d"], []),
    ),
    Call(name="Client.broker", make=lambda ground, _: ground.client.broker(), look=_nothing, outcomes=(None,)),
    Call(
        name="Client.pause_bridge",
        prepare=_resume_bridge,
        make=lambda ground, _: ground.client.pause_bridge("b"),
        look=_bridge_paused,
        outcomes=(False, True),
    ),
    Call(
        name="Client.resume_bridge",
        make=lambda ground, _: ground.client.resume_bridge("b"),
        look=_bridge_paused,
        outcomes=(True, False),
    ),
    Call(name="Client.bridges", make=lambda ground, _: ground.client.bridges(), look=_nothing, outcomes=(None,)),
    Call(name="Client.diverts", make=lambda ground, _: ground.client.diverts(), look=_nothing, outcomes=(None,)),
    Call(
        name="Client.explain_route",
        make=lambda ground, _: ground.client.explain_route("q", {"a": 1}),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(
        name="Client.cluster_queue",
        make=lambda ground, _: ground.client.cluster_queue("q"),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(name="Client.stuck", make=lambda ground, _: ground.client.stuck(), look=_nothing, outcomes=(None,)),
    Call(
        name="Client.trace",
        make=lambda ground, _: ground.client.trace(MessageId(bytes(16), 1)),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(
        name="Producer.__aenter__ Producer.__aexit__ Producer.close",
        make=lambda ground, _: _use_block(ground.client.producer("q")),
        look=_nothing,
        outcomes=(None,),
    ),
    Call(
        name="Producer.send",
        prepare=_open_producer,
        make=_send_three(confirm=False),
        look=count,
        outcomes=(None, 0, 1, 2, 3),
    ),
    Call(
        name="Producer.flush",
        prepare=_open_producer,
        make=_send_three(confirm=True),
        look=count,
        outcomes=(None, 0, 1, 2, 3),
    ),
    Call(
        name="Consumer.__aenter__ Consumer.__aexit__ Consumer.close",
        prepare=filled,
        make=lambda ground, _: _use_block(ground.client.consumer("q")),
        look=count,
        outcomes=(3,),
    ),
    Call(
        name="Consumer.receive",
        prepare=lambda ground: _consumer_of(ground, full=False),
        make=lambda ground, consumer: consumer.receive(timeout=1),
        look=count,
        outcomes=(0,),
    ),
    Call(
        name="Consumer.receive_many",
        prepare=lambda ground: _consumer_of(ground, full=True),
        make=lambda ground, consumer: consumer.receive_many(10, timeout=1),
        look=count,
        outcomes=(3,),
    ),
    Call(
        name="Consumer.__anext__",
        prepare=lambda ground: _consumer_of(ground, full=True),
        make=lambda ground, consumer: consumer.__anext__(),
        look=count,
        outcomes=(3,),
    ),
    Call(
        name="Consumer.ack",
        prepare=received,
        make=lambda ground, got: got[0].ack(got[1], confirm=True),
        look=settled,
        outcomes=((0, 0, 0), (1, 0, 0)),
    ),
    Call(
        name="Consumer.nack",
        prepare=received,
        make=lambda ground, got: got[0].nack(got[1], delay=60),
        look=settled,
        outcomes=((0, 0, 0), (0, 0, 1)),
    ),
    Call(
        name="Consumer.reject",
        prepare=received,
        make=lambda ground, got: got[0].reject(got[1]),
        look=settled,
        outcomes=((0, 0, 0), (0, 1, 0)),
    ),
    Call(
        name="Delivery.ack",
        prepare=received,
        make=lambda ground, got: got[1].ack(confirm=True),
        look=settled,
        outcomes=((0, 0, 0), (1, 0, 0)),
    ),
    Call(
        name="Delivery.nack",
        prepare=received,
        make=lambda ground, got: got[1].nack(delay=60),
        look=settled,
        outcomes=((0, 0, 0), (0, 0, 1)),
    ),
    Call(
        name="Delivery.reject",
        prepare=received,
        make=lambda ground, got: got[1].reject(),
        look=settled,
        outcomes=((0, 0, 0), (0, 1, 0)),
    ),
    Call(
        name="Delivery.reply",
        prepare=_question,
        make=lambda ground, question: question.reply(b"answer"),
        look=lambda ground: count(ground, "answers"),
        outcomes=(0, 1),
    ),
    Call(
        name="EventStream.__anext__",
        make=lambda ground, _: _next_event(ground),
        look=_nothing,
        outcomes=(None,),
    ),
)


async def _consumer_of(ground: Ground, *, full: bool) -> Consumer:
    await ground.client.create_queue("q")
    if full:
        await filled(ground)
    return await ground.keep(ground.client.consumer("q"))


async def _next_event(ground: Ground) -> None:
    with trio.move_on_after(1):
        await ground.client.events().__anext__()
