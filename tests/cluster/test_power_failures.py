"""Nodes whose machines lose their power, at each call on their disks: nothing confirmed is lost, nothing is doubled."""

from __future__ import annotations

import pytest
import trio

from meshq import MeshqError
from meshq.settings import JournalSettings
from tests.cluster.kit import bodies, mesh
from tests.cluster.test_nodes import create, settled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "victim", "detect"),
    [
        *[(mode, victim, True) for mode in ("strict", "on_demand") for victim in "ab"],
        # Then a message may be stored twice; the numbers of a link leave it out all the same.
        ("strict", "b", False),
    ],
)
async def test_power_that_is_lost_in_the_middle_of_a_stream_loses_and_doubles_nothing(
    mode: str, victim: str, detect: bool
) -> None:
    small = {"journal": JournalSettings(segment_bytes=64 * 1024)}
    cuts = 0
    cluster = {"use_duplicate_detection": detect}
    async with mesh("ab", root="simulated", mode=mode, broker=small, cluster=cluster) as nodes:
        await create(nodes, "a", "b")
        await nodes.joined("a", "b")
        confirmed: list[bytes] = []
        got: list[bytes] = []
        # Each call is cut for each of the two nodes, in one of the two modes.
        for cut in range(1 + (mode == "on_demand"), 45, 2):
            async with trio.open_nursery() as nursery:

                async def stream(cut: int = cut) -> None:
                    try:
                        for start in range(0, 60, 3):
                            sent = [b"%d-%d" % (cut, number) for number in range(start, start + 3)]
                            await nodes.send("a", sent)
                            confirmed.extend(sent)
                    except (MeshqError, BaseExceptionGroup):
                        # Its own node was lost: of what was not confirmed nobody knows.
                        assert victim == "a"

                async def want() -> None:
                    try:
                        # Not acknowledged: so whatever is stored there is there to be counted.
                        async with nodes.client("b") as client, client.consumer("q"):
                            await nodes.ended(victim)
                    except (MeshqError, BaseExceptionGroup):
                        assert victim == "b"

                async def receive() -> None:
                    got.extend(bodies(await nodes.drain("b", quiet=0.2)))

                if mode == "on_demand":
                    nursery.start_soon(want)
                    await nodes.known("a").wait_for(queue="q", consumers=1, timeout=5)
                elif victim == "a":
                    nursery.start_soon(receive)
                nodes.lose_power_at(victim, cut)
                nursery.start_soon(stream)
                with trio.move_on_after(3) as scope:
                    await nodes.ended(victim)
                if scope.cancelled_caught:
                    nodes.lose_power(victim)
                    await nodes.ended(victim)
                else:
                    cuts += 1
            await nodes.start(victim)
            await nodes.joined("a", "b")
        for name in "ab":
            got += bodies(await nodes.drain(name))
        assert len(got) == len(set(got)), "stored twice"
        assert not set(confirmed) - set(got), "lost"
        assert await settled(nodes) == {}
        assert cuts > 10
