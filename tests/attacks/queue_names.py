"""A stranger takes the names of other people's queues: a user who may create at ``mine.#`` wants ``orders.new`` there.

By a call, by a send, by a consumer and by a transaction; none of them gets it, the shop's sends and dead letters
arrive, and no refusal says where a queue is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from meshq import Client, connect
from meshq.errors import MeshqError, SecurityError
from tests.attacks.kit import Report, Server, main, serving

SETTINGS: Final = """
[address_settings."orders.#"]
dead_letter_address = "orders.dead"
[security.roles]
stranger = ["strangers"]
shop = ["shops"]
[security.permissions."mine.#"]
send = ["strangers"]
consume = ["strangers"]
create = ["strangers"]
manage = ["strangers"]
[security.permissions."orders.#"]
send = ["shops"]
consume = ["shops"]
create = ["shops"]
manage = ["shops"]
"""
NAMES: Final = ("orders.new", "orders.dead")
SENT: Final = 20


async def by_call(client: Client, name: str) -> None:
    """Create the queue."""
    await client.create_queue(name, address="mine.x")


async def by_send(client: Client, name: str) -> None:
    """Send to it."""
    await client.send(f"mine.x::{name}", b"x")


async def by_consumer(client: Client, name: str) -> None:
    """Consume from it."""
    async with client.consumer(f"mine.x::{name}") as consumer:
        await consumer.receive(timeout=0.01)


async def by_transaction(client: Client, name: str) -> None:
    """Send to it in a transaction."""
    async with client.transaction() as tx:
        await tx.send(f"mine.x::{name}", b"x")


WAYS: Final[tuple[Callable[[Client, str], Awaitable[None]], ...]] = (by_call, by_send, by_consumer, by_transaction)


async def _reject_all(shop: Client, count: int) -> None:
    """Have the shop's messages become dead letters."""
    async with shop.consumer("orders.new") as consumer:
        for _ in range(count):
            delivery = await consumer.receive(timeout=5)
            if delivery is not None:
                await delivery.reject()
        await shop.flush()


async def attack(folder: Path) -> Report:
    """The stranger tries every way, and the shop does its work."""
    server = Server(folder, users={"stranger": "secret", "shop": "secret"}, settings=SETTINGS)
    report = Report("names of other people's queues")
    refused: list[MeshqError] = []
    async with (
        serving(server),
        connect(server.url, user="stranger", password="secret") as stranger,
        connect(server.url, user="shop", password="secret") as shop,
    ):
        for name in NAMES:
            for way in WAYS:
                try:
                    await way(stranger, name)
                except MeshqError as error:
                    refused.append(error)
        report.exactly("ways that were tried", len(NAMES) * len(WAYS), 8)
        report.exactly("typed refusals", sum(isinstance(error, SecurityError) for error in refused), 8)
        sent = 0
        for number in range(SENT):
            with suppress(MeshqError):
                await shop.send("orders.new", b"%d" % number)
                sent += 1
        report.exactly("confirmed sends of the shop", sent, SENT)
        with suppress(MeshqError):
            await _reject_all(shop, sent)
        dead = 0
        with suppress(MeshqError):
            dead = (await shop.queue("orders.dead")).ready
        report.exactly("dead letters of the shop", dead, SENT)
        try:
            await stranger.create_queue("mine.y", address="mine.x")
            await stranger.consumer("orders.new").__aenter__()
        except MeshqError as error:
            refused.append(error)
        told = sum("mine.x" in str(error) for error in refused)
        report.exactly("refusals that say where a queue is", told, 0)
        report.exactly("refusals in all", len(refused), 9)
    return report


if __name__ == "__main__":
    main(attack)
