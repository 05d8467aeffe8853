"""Queues whose filters cost as much as they can, and long runs for them: ``python -m tests.attacks.costly_queue``."""

from __future__ import annotations

from pathlib import Path

import trio

from meshq import Client, Message, connect
from tests.attacks.costly_filter import FILTER, NEARLY, SENDING_S, TEXT
from tests.attacks.kit import Report, Server, main, serving

#: Messages of a run: with these texts it has some 15 MiB.
RUN = 250


async def _send(client: Client, waits: list[float]) -> None:
    end = trio.current_time() + SENDING_S
    while trio.current_time() < end:
        began = trio.current_time()
        await client.send("orders", b"an order")
        waits.append(trio.current_time() - began)


async def _fill(url: str, address: str, done: list[int]) -> None:
    """Send runs to where their messages are sorted, again and again."""
    async with connect(url) as client:
        run = [Message(b"", properties={"p": TEXT})] * RUN
        while True:
            await client.send_many(address, run)
            done.append(len(run))


async def _commit(url: str, address: str) -> None:
    async with connect(url) as client:
        while True:
            async with client.transaction() as transaction:
                for _ in range(20):
                    await transaction.send(address, b"", properties={"p": TEXT})


async def _explain(url: str, address: str) -> None:
    async with connect(url) as client:
        while True:
            await client.explain_route(address, properties={"p": TEXT[-2_000:]})


async def attack(folder: Path) -> Report:
    """Make queues with filters, and a divert with one; send long runs there, and ask of them; send elsewhere, too."""
    report, waits, done = Report("costly queue"), list[float](), list[int]()
    server = Server(folder)
    async with serving(server):
        url = server.url
        async with connect(url) as client:
            for number, filter in enumerate((FILTER, NEARLY)):
                await client.create_queue(f"some-{number}", address="trap", routing="multicast", filter=filter)
            await client.create_divert(
                "leave", address="door", forwarding_address="trap", filter=FILTER, exclusive=True
            )
            await client.create_queue("door")
            async with trio.open_nursery() as nursery:
                for address in ("trap", "trap", "door"):
                    nursery.start_soon(_fill, url, address, done)
                nursery.start_soon(_commit, url, "trap")
                for _ in range(5):
                    nursery.start_soon(_explain, url, "door")
                await trio.sleep(0.5)
                await _send(client, waits)
                nursery.cancel_scope.cancel()
    report.at_least("sends that were confirmed meanwhile", len(waits), 10)
    report.at_most("seconds that the longest of them took", max(waits), 2.0)
    return report


if __name__ == "__main__":
    main(attack)
