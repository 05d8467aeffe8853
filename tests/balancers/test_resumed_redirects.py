"""Sends of redirected clients that are under way when the link to the target is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from meshq import BalancerPolicy, BalancerTarget, Client, Redirected
from tests.balancers.kit import balanced, node_of, so_far, url_of
from tests.cluster.kit import until

SENDS = 120


async def _send(client: Client, bodies: list[bytes]) -> None:
    async with trio.open_nursery() as nursery:
        for body in bodies:
            nursery.start_soon(client.send, "q", body)


@pytest.mark.parametrize("away", [0.0, 4.0])
async def test_the_session_is_resumed_at_the_target_and_nothing_is_lost_or_doubled(away: float) -> None:
    bodies = [b"%d" % number for number in range(SENDS)]
    async with (
        balanced("ab", policy="consistent_hash") as made,
        made.dial(f"{url_of('front', 5_001)}?connection_timeout=0.5", connection_ttl=30, call_timeout=60) as client,
    ):
        there, events = node_of(client), client.events()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send, client, bodies[: SENDS // 2])
            await trio.sleep(0.0025)
            assert made.network.reset("shop", there)
            await until(lambda: not node_of(client))
            if away:
                for one, other in (("shop", there), (there, "shop")):
                    made.network.cut(one, other)
            nursery.start_soon(_send, client, bodies[SENDS // 2 :])
            await trio.sleep(away)
            made.network.heal()
        assert node_of(client) == there
        # The first attempt is at the target; only when that fails does the client ask the front again.
        again = [event.url for event in await so_far(events) if isinstance(event, Redirected)]
        assert set(again) == ({url_of(there)} if away else set())
        about = client.statistics()
        assert (about.resumed, made.brokers[there].statistics().sessions) == (1, 1)
        found = []
        async with client.consumer("q") as consumer:
            for _ in bodies:
                delivery = await consumer.receive(timeout=5)
                assert delivery is not None
                found.append(bytes(delivery.body))
        assert sorted(found) == sorted(bodies)
        assert made.brokers["front"].statistics().sessions == 0


class Once(BalancerPolicy):
    """A policy of a client that chooses once, and none after that."""

    def __init__(self) -> None:
        self.asked = 0

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        self.asked += 1
        return targets[0] if self.asked == 1 else None


async def test_the_session_is_resumed_also_when_the_client_s_own_policy_chooses_no_node() -> None:
    async with balanced("a") as made, made.dial(connection_ttl=30, load_balancing=Once()) as client:
        assert node_of(client) == "a"
        assert made.network.reset("shop", "a")
        with trio.fail_after(10):
            await until(lambda: client.statistics().resumed == 1)
        assert node_of(client) == "a"
