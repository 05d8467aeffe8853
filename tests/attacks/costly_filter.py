"""A filter that costs as much as one can, beside somebody who only sends: ``python -m tests.attacks.costly_filter``."""

from __future__ import annotations

from pathlib import Path

import trio

from meshq import Client, Message, connect
from tests.attacks.kit import Report, Server, main, serving

#: As many as a filter's text has room for.
FILTER = " OR ".join(["p LIKE '%_x%'"] * 110)
#: What fits nowhere, but nearly everywhere.
NEARLY = " OR ".join(["p LIKE '%a_b_c%'"] * 90)
TEXT = "a" * 20_000 + "acab" * 9_999
MESSAGES = 200
#: Seconds for which somebody else sends meanwhile.
SENDING_S = 8.0


async def _send(client: Client, waits: list[float]) -> None:
    end = trio.current_time() + SENDING_S
    while trio.current_time() < end:
        began = trio.current_time()
        await client.send("orders", b"an order")
        waits.append(trio.current_time() - began)


async def _listen(url: str, filter: str, browse: bool) -> None:
    """Want what there is none of; whoever only looks looks again and again."""
    async with connect(url) as client:
        while True:
            async with client.consumer("trap", filter=filter, browse=browse) as consumer:
                async for _ in consumer:
                    pass


async def attack(folder: Path) -> Report:
    """Fill a queue with long texts, put filters to it, and send elsewhere meanwhile."""
    report, waits = Report("costly filter"), list[float]()
    server = Server(folder)
    async with serving(server):
        url = server.url
        async with connect(url) as client:
            for _ in range(0, MESSAGES, 20):
                await client.send_many("trap", [Message(b"", properties={"p": TEXT})] * 20)
            async with trio.open_nursery() as nursery:
                for filter in (FILTER, NEARLY):
                    for browse in (False, True):
                        nursery.start_soon(_listen, url, filter, browse)
                await trio.sleep(0.5)
                await _send(client, waits)
                nursery.cancel_scope.cancel()
    report.at_least("sends that were confirmed meanwhile", len(waits), 10)
    report.at_most("seconds that the longest of them took", max(waits), 3.0)
    return report


if __name__ == "__main__":
    main(attack)
