"""Two-phase transactions and a client that has gone to another node, which knows nothing of them."""

from __future__ import annotations

import pytest
import trio

from meshq import RetryTransactionError, TransactionRolledBackError, UsageError, connect
from tests.cluster.kit import mesh, until

XID = b"order-7"


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("verdict", ["commit", "rollback"])
async def test_no_two_answers_about_one_transaction_contradict_each_other_over_two_nodes(
    verdict: str, power: bool
) -> None:
    async with mesh("ab", root="simulated") as nodes:
        both = f"({nodes.urls['a']},{nodes.urls['b']})"
        async with connect(both, env=nodes.env, retry_interval=0.01, load_balancing="first_element") as client:
            async with client.transaction(XID) as tx:
                await tx.send("q", b"1")
                await tx.prepare()
            there = client.statistics().node_id
            assert there == nodes.brokers["a"].node_id
            if power:
                nodes.lose_power("a")
                await nodes.ended("a")
            else:
                await nodes.kill("a")
            await until(lambda: client.statistics().node_id == nodes.brokers["b"].node_id)
            # Who has prepared it knows where it is.
            for ask in (client.commit, client.rollback):
                with pytest.raises(RetryTransactionError, match="not known here") as caught:
                    await ask(XID)
                assert caught.value.outcome == "not_done"
        # Who only has the xid is told the same by one node from then on, whatever becomes of that.
        for _ in range(2):
            async with nodes.client("b") as other:
                if verdict == "commit":
                    await other.commit(XID)
                    with pytest.raises(UsageError, match="was committed"):
                        await other.rollback(XID)
                else:
                    await other.rollback(XID)
                    with pytest.raises(TransactionRolledBackError):
                        await other.commit(XID)
            if power:
                nodes.lose_power("b")
                await nodes.ended("b")
            else:
                await nodes.kill("b")
            await nodes.start("b")
        await nodes.start("a")
        async with nodes.client("a") as home:
            # It is prepared at its node, and is what its node decides.
            assert await home.recover() == [XID]
            await getattr(home, verdict)(XID)
            assert await home.recover() == []
            with trio.move_on_after(5):
                assert (await home.queue("q")).ready == (verdict == "commit")
