"""Queues whose filters cost as much as they can, and long runs for them: ``python -m tests.attacks.costly_queue``."""

from __future__ import annotations

from pathlib import Path

import trio

from meshq import Message, connect
from tests.attacks.costly import FILTERS, NEARLY, TEXT, judge, send_meanwhile
from tests.attacks.kit import Report, Server, main, serving

#: Messages of a run: with these texts it has some 15 MiB.
RUN = 250


async def _fill(url: str, address: str) -> None:
    """Send runs to where their messages are sorted, again and again."""
    async with connect(url) as client:
        run = [Message(b"", properties={"p": TEXT})] * RUN
        while True:
            await client.send_many(address, run)


async def _commit(url: str, address: str, done: list[int]) -> None:
    """Commit one message after the other; each is too much for a step."""
    async with connect(url) as client:
        while True:
            async with client.transaction() as transaction:
                await transaction.send(address, b"", properties={"p": TEXT})
            done.append(1)


async def _explain(url: str, address: str) -> None:
    async with connect(url) as client:
        while True:
            await client.explain_route(address, properties={"p": TEXT[-2_000:]})


async def attack(folder: Path) -> Report:
    """Make queues with filters, and a divert with one; send long runs there, and ask of them; send elsewhere, too."""
    report, done = Report("costly queue"), list[int]()
    server = Server(folder)
    async with serving(server), connect(server.url) as client:
        for number, filter in enumerate(FILTERS):
            await client.create_queue(f"some-{number}", address="trap", routing="multicast", filter=filter)
        await client.create_divert("leave", address="door", forwarding_address="trap", filter=NEARLY, exclusive=True)
        await client.create_queue("door")
        async with trio.open_nursery() as nursery:
            for address in ("trap", "trap", "door"):
                nursery.start_soon(_fill, server.url, address)
            nursery.start_soon(_commit, server.url, "trap", done)
            for _ in range(5):
                nursery.start_soon(_explain, server.url, "door")
            await trio.sleep(0.5)
            waits = await send_meanwhile(client)
            nursery.cancel_scope.cancel()
    judge(report, waits, messages=RUN, asked=len(done), longest_s=2.0)
    return report


if __name__ == "__main__":
    main(attack)
