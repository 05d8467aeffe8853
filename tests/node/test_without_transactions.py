"""What a session that is made anew doesn't know, and how nothing is lost or doubled all the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

from meshq import StaleDeliveryError, UnblockedError
from tests.node.lives import lives
from tests.node.test_transactions import everything, until

DOCS = Path(__file__).parents[2] / "docs"


async def test_a_session_made_anew_knows_nothing_of_what_the_one_before_had_in_hand() -> None:
    async with lives() as node, node.client() as client:
        await client.send_many("in", [b"1", b"2"])
        async with client.consumer("in") as consumer:
            first = await consumer.receive(timeout=5)
            assert first is not None and not first.redelivered
            await node.again(killed=True)
            await until(lambda: client.statistics().renewed == 1)
            with pytest.raises(StaleDeliveryError):
                await first.ack()
            again = await consumer.receive(timeout=5)
            assert again is not None and again.body == b"1" and again.redelivered
            await again.ack(confirm=True)
        assert client.statistics().renewed == 1


async def test_without_transactions_ids_and_repeating_come_to_the_same() -> None:
    """Read, send on and acknowledge, one after the other; repeat whatever is unknown, with the same id."""
    async with lives() as node, node.client(resend=False, max_retry_interval=0.1) as client:
        sent = [b"%d" % number for number in range(200)]
        unknown = 0
        async with trio.open_nursery() as nursery, client.consumer("in", window=20) as consumer:

            async def kill() -> None:
                for life in range(8):
                    await trio.sleep(0.003 * (life + 1))
                    await node.again(killed=True)

            async def send_until_known(address: str, body: bytes) -> None:
                nonlocal unknown
                while True:
                    try:
                        return await client.send(address, body, duplicate_id=body)
                    except UnblockedError:
                        unknown += 1

            async def produce() -> None:
                for body in sent:
                    await send_until_known("in", body)
                    await trio.sleep(0.0005)

            nursery.start_soon(kill)
            nursery.start_soon(produce)
            while (delivery := await consumer.receive(timeout=5)) is not None:
                await send_until_known("out", delivery.body)
                await trio.sleep(0.0005)
                try:
                    await delivery.ack(confirm=True)
                except (StaleDeliveryError, UnblockedError):
                    unknown += 1
        assert unknown
        assert sorted(await everything(client, "out")) == sorted(sent)
        assert await everything(client, "in") == []


def test_the_documentation_says_what_may_be_lost_why_and_what_to_do() -> None:
    page = (DOCS / "how-to" / "once-and-only-once.md").read_text(encoding="utf-8")
    lost = page[page.index("## What a lost connection does") : page.index("## Once and only once")]
    assert "a send without a confirm, an acknowledgement that did not arrive" in lost
    assert re.search(r"Keeping a copy of each session .* would cost", lost)
    assert "duplicate id" in page[page.index("## Once and only once") :]
    # Whoever reads what a lost link does finds the way there.
    assert "(how-to/once-and-only-once.md)" in (DOCS / "explanation.md").read_text(encoding="utf-8")
