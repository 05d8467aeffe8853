"""Where a cell of the delivery matrix is played: one broker, life after life, and its clients.

Time is the mock clock's, the disk a simulated one; over TCP the sockets are real ones of the loopback device.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

import attrs
import trio

from meshq.abc import Env
from meshq.client import Client, Consumer, QueueStatistics, ReceivedMessage, Transaction
from meshq.env import real_env
from meshq.message import Message
from meshq.node import Broker
from meshq.settings import AddressSettings
from meshq.testing import InlineThreads, SimDisk, SimEntropy, SimWallClock
from qa.matrix.sending import Sending

T = TypeVar("T")

NAME: Final = "matrix"
#: After so long without a message there is none: over in an instant on a clock that jumps.
QUIET_S: Final = 0.5
#: How a life ends while its clients are there: in peace, or with everything that was not synced.
ENDINGS: Final = ("restart", "power cut")


@attrs.define(eq=False, kw_only=True)
class Stage:
    """A life of the broker, or of a pair, as an entry of the matrix sees it."""

    #: A client for everything that does not take two.
    client: Client
    #: What an entry remembers over lives.
    notes: dict[str, Any]
    #: Consumers that were opened in this life and stay so; a new life has none.
    consumers: list[Consumer] = attrs.field(factory=list)
    _stack: AsyncExitStack
    _connect: Callable[[], Client]
    _sending: Sending
    #: With this all names begin that an entry gives to what is in the broker.
    _prefix: str = ""

    def at(self, name: str) -> str:
        """Return the name in the broker; names that the broker has given stay as they are."""
        return name if name.startswith("$") else f"{self._prefix}{name}"

    def settled(self, settings: AddressSettings) -> AddressSettings:
        """Return settings with the names, in the broker, of the addresses that they name."""
        return placed(settings, self._prefix)

    def consumer(self, queue: str, **options: Any) -> Consumer:
        """A consumer of a queue, to be used in an ``async with``."""
        return self.client.consumer(self.at(queue), **options)

    def subscribe(self, address: str, **options: Any) -> Consumer:
        """A subscriber, to be used in an ``async with``."""
        return self.client.subscribe(self.at(address), **options)

    async def queue(self, name: str) -> QueueStatistics:
        """Ask about a queue.  Checkpoint, Cancellation, Raises: as ``client.queue``."""
        return await self.client.queue(self.at(name))

    async def queues(self) -> list[str]:
        """The queues of this entry, by the names it gave.  Checkpoint, Cancellation, Raises: as ``client.queues``."""
        every = await self.client.queues()
        return [name.removeprefix(self._prefix) for name in every if name.startswith(self._prefix)]

    async def send(self, address: str, body: bytes, **about: Any) -> None:
        """Send one message as the column does.  Checkpoint, Cancellation, Raises: as ``client.send``."""
        await self._sending.send(self.client, self.at(address), body, **about)

    async def send_many(self, address: str, messages: Iterable[bytes | Message]) -> None:
        """Send several messages as the column does.  Checkpoint, Cancellation, Raises: as ``client.send_many``."""
        await self._sending.send_many(self.client, self.at(address), messages)

    async def send_in(self, transaction: Transaction, address: str, body: bytes) -> None:
        """Send one message in a transaction as the column does.

        Checkpoint, Cancellation, Raises: as ``transaction.send``.
        """
        await self._sending.send_in(transaction, self.at(address), body)

    async def request(self, address: str, body: bytes, timeout: float) -> ReceivedMessage:  # noqa: ASYNC109
        """Ask as the column sends.  Checkpoint, Cancellation, Raises: as ``client.request``."""
        return await self.client.request(self.at(address), body, timeout=timeout, durable=self._sending.durable)

    def another(self) -> Client:
        """Another client, to be used in an ``async with``."""
        return self._connect()

    async def join(self) -> Client:
        """Another client, that is there to the end of this life or until it is closed."""
        return await self._stack.enter_async_context(self._connect())

    async def keep(self, consumer: Consumer) -> Consumer:
        """Open a consumer that is there to the end of this life."""
        self.consumers.append(consumer)
        return await self._stack.enter_async_context(consumer)

    async def drain(self, queue: str, **options: Any) -> list[bytes]:
        """The bodies of all that a queue gives to a new consumer, acknowledged."""
        got: list[bytes] = []
        async with self.consumer(queue, **options) as consumer:
            got += await bodies(consumer)
        return got


def placed(settings: AddressSettings, prefix: str) -> AddressSettings:
    """Return settings with a prefix before each of the addresses that they name."""
    dead, late = settings.dead_letter_address, settings.expiry_address
    return attrs.evolve(
        settings, dead_letter_address=dead and f"{prefix}{dead}", expiry_address=late and f"{prefix}{late}"
    )


async def bodies(consumer: Consumer) -> list[bytes]:
    """The bodies of all that comes until nothing came for a while, acknowledged."""
    got: list[bytes] = []
    while batch := await consumer.receive_many(1_000, timeout=QUIET_S):
        got += [delivery.body for delivery in batch]
        await consumer.ack(*batch, confirm=True)
    return got


async def held(consumer: Consumer) -> list[bytes]:
    """The bodies of all that comes until nothing came for a while; the consumer keeps it."""
    got: list[bytes] = []
    while batch := await consumer.receive_many(1_000, timeout=QUIET_S):
        got += [delivery.body for delivery in batch]
    return got


class House:
    """A broker that can be started again on its disk.

    ``durable``: it leaves something.  ``sending``: how its clients send.
    """

    def __init__(
        self,
        settings: Mapping[str, AddressSettings],
        *,
        durable: bool,
        tcp: bool,
        sending: Sending,
    ) -> None:
        self._sending = sending
        self._settings = dict(settings)
        self._durable = durable
        self._tcp = tcp
        self._rng = random.Random(1)
        self._disk = SimDisk()
        outside = attrs.evolve(real_env(), threads=InlineThreads(), wall=SimWallClock(), entropy=SimEntropy(self._rng))
        self._outside = attrs.evolve(outside, local={})
        self._notes: dict[str, Any] = {}
        #: The broker of the last life that has begun.
        self.broker: Broker | None = None

    @asynccontextmanager
    async def life(self, ending: str | None = None) -> AsyncIterator[Stage]:
        """A life that ends in peace after its clients have left, or, with an ``ending``, while they are there."""
        env = attrs.evolve(self._outside, disk=self._disk.mount())
        self.broker = broker = Broker(
            NAME,
            data_dir=f"/data/{NAME}" if self._durable else None,
            acceptors=["tcp://127.0.0.1:0"] if self._tcp else [],
            address_settings=self._settings,
            env=env,
        )
        async with trio.open_nursery() as nursery:
            power = trio.CancelScope()
            await nursery.start(_live, broker, power)
            with trio.CancelScope() as visit:
                async with AsyncExitStack() as stack:
                    connecting = self._client(broker, env)
                    client = await stack.enter_async_context(connecting())
                    yield Stage(
                        client=client,
                        notes=self._notes,
                        stack=stack,
                        connect=connecting,
                        sending=self._sending,
                    )
                    if ending is not None:
                        # What was said is stored; what the clients hold, they hold.
                        await client.flush()
                        await self._end(broker, power, ending)
                        visit.cancel()
                        await trio.lowlevel.checkpoint()
            if ending is None:
                await broker.stop()

    def _client(self, broker: Broker, env: Env) -> Callable[[], Client]:
        url = broker.urls[0] if self._tcp else f"inproc://{NAME}"
        return lambda: self._sending.connect(url, env=env)

    async def _end(self, broker: Broker, power: trio.CancelScope, ending: str) -> None:
        if ending == "restart":
            await broker.stop()
            return
        power.cancel()
        while broker.state == "active":
            await trio.lowlevel.checkpoint()
        self._disk.power_loss(self._rng)


async def _live(
    broker: Broker, power: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with power:
        await broker.run(task_status=task_status)
