"""What a session that is made anew doesn't know, and how nothing is lost or doubled all the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import trio

from meshq import Client, StaleDeliveryError, UnblockedError
from tests.node.lives import lives
from tests.node.test_failing_over import Kills
from tests.node.test_transactions import clean, everything, until
from tests.node.wires import wires

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("resend", [True, False])
@pytest.mark.parametrize("seed", range(2))
async def test_two_hundred_messages_come_through_random_kills_once_each_without_transactions(
    seed: int, resend: bool
) -> None:
    """Over a network that loses requests and replies, and kills of the process and of its machine's power."""
    bodies = [b"%d" % number for number in range(200)]
    outcomes: Counter[str] = Counter()
    arrived: Counter[bytes] = Counter()

    async def once(client: Client, address: str, body: bytes) -> None:
        while True:
            try:
                return await client.send(address, body, duplicate_id=body)
            except UnblockedError as error:
                outcomes[f"send {error.outcome}"] += 1

    async def produce(client: Client) -> None:
        for body in bodies:
            await once(client, "in", body)

    async with wires() as at, at.client(max_retry_interval=0.05, resend=resend) as client:
        kills = Kills(seed, at)
        async with trio.open_nursery() as nursery, client.consumer("in", window=20) as consumer:
            nursery.start_soon(kills.run)
            nursery.start_soon(produce, client)
            while (delivery := await consumer.receive(timeout=2)) is not None:
                kills.doing = "send"
                arrived[delivery.body] += 1
                await once(client, "out", delivery.body)
                kills.doing = "ack"
                try:
                    await delivery.ack(confirm=True)
                except (StaleDeliveryError, UnblockedError) as error:
                    # Its message comes again, and is sent on in vain.
                    outcomes[f"ack {error.outcome}"] += 1
                kills.doing = "nothing"
        assert sorted(await everything(client, "out")) == sorted(bodies)
        assert await everything(client, "in") == []
        clean(at.node)
    assert kills.struck.total() == 24
    # The broker died in the middle of both, and of some nobody knew whether they were done.
    assert kills.struck["send"] and kills.struck["ack"]
    assert outcomes.total()
    assert bool(outcomes["send unknown"]) is not resend
    assert max(arrived.values()) > 1


def test_the_documentation_says_what_may_be_lost_why_and_what_to_do() -> None:
    page = (DOCS / "how-to" / "once-and-only-once.md").read_text(encoding="utf-8")
    lost = page[page.index("## What a lost link does") : page.index("## Once and only once")]
    assert "a send without a confirm, an acknowledgement that did not arrive" in lost
    assert re.search(r"Keeping a copy of each session .* would cost", lost)
    assert "duplicate id" in page[page.index("## Once and only once") :]
    # Whoever reads what a lost link does finds the way there.
    assert "(how-to/once-and-only-once.md)" in (DOCS / "explanation.md").read_text(encoding="utf-8")
