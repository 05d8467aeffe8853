"""The history of a cluster in a test: forgotten duplicate ids, and transactions that were rolled back."""

from __future__ import annotations

import attrs
import pytest

from meshq import AddressSettings
from meshq.testing import Cluster, HistoryError
from tests.testing.kit.test_cluster import receive
from tests.testing.kit.worlds import in_cluster


def test_a_queue_whose_address_has_forgotten_ids_is_not_judged_by_them() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            for number, one in enumerate("abca"):
                await client.send("orders", b"%d" % number, duplicate_id=one)
        assert await receive(cluster, "n0") and cluster.history.check() == ["orders"]

    in_cluster(test, nodes=1, address_settings={"orders": AddressSettings(duplicate_id_cache_size=2)})


def test_what_a_transaction_has_sent_that_was_rolled_back_is_never_delivered() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            await client.send("orders", b"a")
            with pytest.raises(KeyError):
                async with client.transaction() as left:
                    await left.send("orders", b"b")
                    raise KeyError
        assert await receive(cluster, "n0")
        await cluster.settled()
        assert cluster.history.check() == ["orders"]
        history = cluster._world.recorder.history
        history.deliveries.append(attrs.evolve(history.deliveries[0], number=1, uid=2, sequence=2))
        with pytest.raises(HistoryError) as caught:
            cluster.history.check()
        assert "Q3" in caught.value.checkers

    in_cluster(test, nodes=1)
