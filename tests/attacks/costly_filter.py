"""A filter that costs as much as one can, beside somebody who only sends: ``python -m tests.attacks.costly_filter``."""

from __future__ import annotations

from pathlib import Path

import trio

from meshq import Message, connect
from tests.attacks.costly import FILTERS, NEARLY, TEXT, judge, send_meanwhile
from tests.attacks.kit import Report, Server, main, serving

MESSAGES = 500
#: Of so many messages one is marked.
MARKED = 4


async def _listen(url: str, filter: str, browse: bool, found: list[str]) -> None:
    """Want what there is little of; whoever only looks looks again and again."""
    async with connect(url) as client:
        while True:
            async with client.consumer("trap", filter=filter, browse=browse) as consumer:
                async for _ in consumer:
                    found.append(filter)


async def attack(folder: Path) -> Report:
    """Fill a queue with long texts, put filters to it, and send elsewhere meanwhile."""
    report, found = Report("costly filter"), list[str]()
    server = Server(folder)
    messages = [Message(b"", properties={"p": TEXT, "marked": not number % MARKED}) for number in range(MARKED * 5)]
    async with serving(server), connect(server.url) as client:
        for _ in range(0, MESSAGES, len(messages)):
            await client.send_many("trap", messages)
        async with trio.open_nursery() as nursery:
            for filter in FILTERS:
                for browse in (False, True):
                    nursery.start_soon(_listen, server.url, filter, browse, found)
            await trio.sleep(0.5)
            waits = await send_meanwhile(client)
            nursery.cancel_scope.cancel()
    judge(report, waits, messages=MESSAGES, asked=found.count(NEARLY) * MARKED, longest_s=3.0)
    return report


if __name__ == "__main__":
    main(attack)
