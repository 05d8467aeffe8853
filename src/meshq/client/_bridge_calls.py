"""The client's calls for bridges: sends under bridge ids, and uncounted returns of deliveries."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from meshq.client.incoming._inbox import returning
from meshq.client.send._body_sources import source_of
from meshq.client.send._send_batches import BridgedMessage
from meshq.errors import UsageError, invariant
from meshq.wire import FLAG_UNCOUNTED

if TYPE_CHECKING:
    from meshq.client._client import Client
    from meshq.client.link._events import ConnectionEvent, EventSink
    from meshq.client.receive._consumer import Consumer
    from meshq.client.receive._delivery import Delivery
    from meshq.errors import MeshqError
    from meshq.message import Message


#: Addresses whose windows are kept; for more addresses the broker is asked again.
WINDOWS_MAX: Final = 1_024


def on_failed_attempts(client: Client, hear: Callable[[MeshqError], None]) -> None:
    """Call ``hear`` with the error of each attempt to connect that fails; to be set before the client connects."""
    client._watchers.watch_attempts(hear)


def keep_to_node(client: Client) -> None:
    """Have a client fail when its connection comes to a node with another id than before.

    Unconfirmed messages are not sent there: the list of the client may name brokers that are no pair.
    """
    client._session.facts.keeps_to_node = True


async def window_at(client: Client, address: str, window: int, routing: str = "") -> int:
    """Return the number of messages that a bridge may have in flight to an address: at most ``window``, and at most the
    number of duplicate ids that the target remembers.

    ``routing``: the routing type that the address is to have; it is made with this one, if need be.

    From here on the target is told of that number, and refuses settings by which it would remember fewer.  A target
    that does not say how many it remembers judges the window itself.

    Checkpoint: always, unless it is known.  Cancellation: nothing has changed.
    Raises:
        UsageError: nothing is remembered there.
        MeshqError: as ``client.producer``.
    """
    known = client._implicit.windows.get(address)
    if known is not None:
        return known
    probe = client.producer(address, window=1)
    probe._outbox.routing = routing
    async with probe:
        remembered = probe._outbox.remembered
    if remembered == 0:
        raise UsageError(
            f"window={window}: {address!r} remembers the last 0 duplicate ids (duplicate_id_cache_size), "
            f"so what a bridge sends again is stored again; use_duplicate_detection=False allows that"
        )
    if len(client._implicit.windows) >= WINDOWS_MAX:
        client._implicit.windows.clear()
    return client._implicit.set_window(address, window if remembered is None else min(window, remembered))


def forget_window(client: Client, address: str) -> None:
    """Forget the window of an address, because the target has refused a message; the next send asks again."""
    client._implicit.windows.pop(address, None)


async def send_bridged(client: Client, address: str, messages: Sequence[BridgedMessage]) -> None:
    """Send messages of a bridge together; as ``client.send_many``.

    Checkpoint: always.  Cancellation: each frame may have been sent or not.
    Raises:
        MeshqError: as ``client.send_many``.
    """
    await client.send_many(address, cast("Sequence[Message]", messages))


async def stream_bridged(client: Client, address: str, message: BridgedMessage, body: AsyncIterable[bytes]) -> None:
    """Send one message of a bridge, whose body is read while it is sent; as ``client.send``.

    Checkpoint: always.  Cancellation: the message may have been sent or not.
    Raises:
        MeshqError: as ``client.send``.
    """
    about, durable = message.row(client._encoder), message.message.durable
    source = source_of(body, client._env.threads)
    run = await client._large.send(address, source, about, durable=durable)
    if run is not None:
        session = client._session
        session.send_queue.submit(client._implicit.to(address), run)
        session.stream.flush()
        await session.send_queue.wait(run)
        run.result()


def put_back(consumer: Consumer, deliveries: Sequence[Delivery], delay: float | None = None) -> None:
    """Give messages back with which nothing was done: they count as never delivered, and come again in their old place,
    at once or after ``delay`` seconds.  The link is one within the process, or the consumer a network consumer, of
    which the broker counts nothing."""
    stream = consumer._session.stream
    within = stream.link is None or stream.link.lossless
    invariant(within or bool(consumer.routes), "what does not count is given back within a process")
    if deliveries:
        # What is stale has gone back already, with its session.
        consumer._inbox.settle(deliveries, returning(delay) | (0 if consumer.routes else FLAG_UNCOUNTED))
        stream.gathered(consumer._inbox)


def acknowledge(consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
    """Acknowledge, and wait for nothing."""
    if deliveries:
        consumer._inbox.settle(deliveries, 0)
        consumer._session.stream.gathered(consumer._inbox)


def watch(client: Client, sink: EventSink[ConnectionEvent]) -> None:
    """Pass the events of a client's connection to ``sink`` from now on."""
    client._watch(sink)
