"""A whole node of a pair that asks a quorum stands still, for less and for more than its session."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from meshq import MeshqError
from meshq.testing import Cluster
from meshq.testing.kit._pairs import SESSION_S
from tests.testing.kit.test_cluster import receive, send
from tests.testing.kit.worlds import in_cluster

#: A renewal holds for a third of the session, and is sent twenty times in that.
LEASE_S = SESSION_S * 0.33


@pytest.mark.slow
def test_a_node_that_stands_still_for_nine_tenths_of_its_lease_keeps_its_role() -> None:
    """F48."""

    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        epoch = cluster.broker("n0").ha.epoch
        for _ in range(5):
            cluster.pause("n0")
            await trio.sleep(LEASE_S * 0.9)
            cluster.resume("n0")
            # At another point between two renewals each time.
            await trio.sleep(LEASE_S * 0.41)
        await send(cluster, "n0", b"b")
        await trio.sleep(SESSION_S)
        assert cluster.alive == ["n0"] and cluster.broker("n0").ha.epoch == epoch
        assert await receive(cluster) == [b"a", b"b"]

    in_cluster(test, nodes=1, ha="replication")


@pytest.mark.slow
def test_a_node_that_stands_still_for_longer_than_its_session_serves_nobody_beside_its_successor() -> None:
    """F48."""

    async def test(cluster: Cluster) -> None:
        confirmed: list[bytes] = []

        async def insist() -> None:
            async with cluster.client("n0", reconnect_attempts=float("inf")) as client:
                for number in range(70):
                    body = b"%d" % number
                    with suppress(MeshqError):
                        await client.send("orders", body)
                        confirmed.append(body)
                    await trio.sleep(0.3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(insist)
            await trio.sleep(0.5)
            cluster.pause("n0")
            await trio.sleep(2 * SESSION_S)
            # The other one serves, and this one does not know.
            assert cluster.broker("n0b").state == "active"
            cluster.resume("n0")
            await trio.sleep(SESSION_S)
            nursery.cancel_scope.cancel()
        await cluster.settled()
        assert cluster.alive == ["n0b"] and cluster.broker("n0").ha.phase == "in_sync"
        assert cluster.broker("n0b").ha.epoch == 2
        got = await receive(cluster)
        assert len(confirmed) > 10 and set(got) >= set(confirmed) and len(got) == len(set(got))

    in_cluster(test, nodes=1, ha="replication")
