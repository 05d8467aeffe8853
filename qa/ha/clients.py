"""The clients of a simulated pair, their accounts, and the checks of these."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container
from contextlib import suppress
from typing import Any, Final, Protocol

import attrs
import trio

from meshq import MeshqError, Message, connect
from meshq.testing import SimNode

QUEUE: Final = "work"


class PairError(AssertionError):
    """A promise about the pair is broken; the text begins with the checker's name."""


@attrs.define
class Accounts:
    """The answers that clients have got."""

    sent: set[str] = attrs.field(factory=set)
    confirmed: set[str] = attrs.field(factory=set)
    #: Whether an acknowledgement of a message was confirmed.
    consumed: set[str] = attrs.field(factory=set)
    #: Messages that were acknowledged, whether or not the answer came.
    acknowledged: set[str] = attrs.field(factory=set)
    #: Messages that were sent more than once, because an answer did not come.
    repeated: set[str] = attrs.field(factory=set)

    @property
    def in_doubt(self) -> set[str]:
        """Messages that may have been sent more than once."""
        return self.repeated | (self.sent - self.confirmed)


class PairRun(Protocol):
    """A run, as its clients see it."""

    rng: random.Random
    accounts: Accounts
    over: bool

    @property
    def url(self) -> str:
        """The URL of the clients."""

    @property
    def may_come_again(self) -> Container[str]:
        """The messages that may come again although they were consumed."""

    def see(self, sight: str) -> None:
        """Count something that has happened."""

    def dial(self, name: str) -> SimNode:
        """Return the machine of a client."""


class Place(Protocol):
    """A node, as who probes it sees it."""

    url: str


PATIENT: Final[dict[str, Any]] = {"retry_interval": 0.1, "max_retry_interval": 0.3, "initial_connect_attempts": 10_000}


async def produce(stage: PairRun, machine: SimNode, name: str) -> None:
    """Send messages with duplicate ids, each until it is confirmed."""
    accounts, number = stage.accounts, 0
    async with connect(stage.url, env=machine.env, reconnect_attempts=float("inf"), **PATIENT) as client:
        while not stage.over:
            uid, number = f"{name}{number}", number + 1
            accounts.sent.add(uid)
            connected = client.statistics().connected
            while True:
                try:
                    await client.send(QUEUE, Message(uid.encode(), duplicate_id=uid))
                except MeshqError:
                    await trio.sleep(0.05)
                else:
                    break
            if client.statistics().connected != connected:
                # The client may have sent it again itself.
                accounts.repeated.add(uid)
            accounts.confirmed.add(uid)
            await trio.sleep(stage.rng.uniform(0.0, 0.2))


async def send_loosely(stage: PairRun, machine: SimNode, number: int) -> None:
    """Send messages that are not durable: only the lease keeps a node from confirming them after a pause."""
    async with connect(stage.url, env=machine.env, reconnect_attempts=float("inf"), **PATIENT) as client:
        while not stage.over:
            with suppress(MeshqError):
                await client.send(f"loose.{number}", Message(b"x", durable=False))
            await trio.sleep(stage.rng.uniform(0.0, 0.1))


async def probe(stage: PairRun, machine: SimNode, member: Place) -> None:
    """Talk to a node anew, again and again, so that it acts as soon as it serves."""
    settings: dict[str, Any] = {"reconnect_attempts": 0, "initial_connect_attempts": 1, "use_topology": False}
    while not stage.over:
        with suppress(MeshqError), trio.move_on_after(1):
            async with connect(member.url, env=machine.env, **settings) as client:
                await client.send("probes", Message(b"x", durable=False))
        await trio.sleep(0.1)


async def produce_in_transactions(stage: PairRun, machine: SimNode) -> None:
    """Send messages in transactions of three, each until it is committed."""
    accounts, number = stage.accounts, 0
    async with connect(stage.url, env=machine.env, reconnect_attempts=float("inf"), **PATIENT) as client:
        while not stage.over:
            uids = [f"t{number}.{part}" for part in range(3)]
            number += 1
            accounts.sent.update(uids)
            connected, done = client.statistics().connected, False
            while not done and not stage.over:
                try:
                    async with client.transaction() as transaction:
                        for uid in uids:
                            await transaction.send(QUEUE, Message(uid.encode(), duplicate_id=uid))
                        await transaction.commit()
                    done = True
                except MeshqError as error:
                    # A transaction that was carried out although the answer was lost is refused as a repetition.
                    done = type(error).__name__ == "DuplicateError"
                    await trio.sleep(0.05)
            if client.statistics().connected != connected:
                accounts.repeated.update(uids)
            if done:
                stage.see("transaction")
                accounts.confirmed.update(uids)
            await trio.sleep(stage.rng.uniform(0.0, 0.5))


async def consume(stage: PairRun, machine: SimNode) -> None:
    """Consume messages, and have each acknowledgement confirmed."""
    accounts = stage.accounts
    async with connect(stage.url, env=machine.env, reconnect_attempts=float("inf"), **PATIENT) as client:
        while not stage.over:
            try:
                async with client.consumer(QUEUE) as consumer:
                    while not stage.over:
                        delivery = await consumer.receive(timeout=0.5)
                        if delivery is None:
                            continue
                        uid = uid_of(bytes(delivery.body))
                        if uid in accounts.consumed and uid not in stage.may_come_again:
                            raise PairError(f"H2: {uid} comes again, although its acknowledgement was confirmed")
                        accounts.acknowledged.add(uid)
                        await consumer.ack(delivery, confirm=True)
                        accounts.consumed.add(uid)
                        await trio.sleep(stage.rng.uniform(0.0, 0.1))
            except MeshqError:
                await trio.sleep(0.05)


def uid_of(body: bytes) -> str:
    """Return the name of a message, without the points with which a large body is filled."""
    return body.rstrip(b".").decode()


async def drain(stage: PairRun, url: str) -> list[str]:
    """Consume all messages that are left, and return their names."""
    machine, left = stage.dial("drain"), list[str]()
    async with (
        connect(url, env=machine.env, reconnect_attempts=100, **PATIENT) as client,
        client.consumer(QUEUE) as consumer,
    ):
        while (delivery := await consumer.receive(timeout=1)) is not None:
            left.append(uid_of(bytes(delivery.body)))
            await consumer.ack(delivery, confirm=True)
    return left


def check_accounts(accounts: Accounts, left: list[str], *, may_come_again: Container[str] = ()) -> None:
    """Compare the messages that are left in the queue with the answers that clients were given.

    ``may_come_again``: the messages that may be there more than once.
    """
    lost = accounts.confirmed - accounts.acknowledged - set(left)
    if lost:
        raise PairError(f"H1: {len(lost)} confirmed messages are lost, {min(lost)} among them")
    twice = [uid for uid, number in Counter(left).items() if number > 1] + [
        uid for uid in left if uid in accounts.consumed
    ]
    twice = [uid for uid in twice if uid not in may_come_again]
    if twice:
        raise PairError(f"H2: {len(twice)} messages are there twice, {twice[0]} among them")
    if set(left) - accounts.sent:
        raise PairError(f"H2: {min(set(left) - accounts.sent)} was never sent")
