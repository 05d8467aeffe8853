"""The role of a node over a connection: how it is, and how a hand-over is ordered, by calls and by messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from meshq import (
    CallTimeoutError,
    Permissions,
    RefusedError,
    RoleStatus,
    Security,
    SecurityError,
    SharedStoreBackup,
    SharedStorePrimary,
)
from tests.ha.test_shared_store_brokers import pair, start

BACKUP = "tcp://127.0.0.1:7002"


@pytest.mark.parametrize("force", [False, True])
async def test_a_client_has_the_node_hand_over_and_back_and_finds_the_other_one(force: bool) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        async with ground.client() as client:
            with pytest.raises(RefusedError, match="no other node waits"):
                await client.fail_over(force=force)
            b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
            await trio.sleep(1)
            status = await client.ha()
            assert isinstance(status, RoleStatus)
            assert (status.policy, status.role, status.phase, status.epoch) == (
                "shared_store_primary",
                "primary",
                "active",
                1,
            )
            assert (status.acting, status.acting_url) == ("a", "tcp://127.0.0.1:7001")
            assert status.waiting == (("b", BACKUP),)
            assert (status.since, status.unprotected, status.last_error) == (a.ha.since, False, "")
            await client.send("q", b"1")
            with pytest.raises(RefusedError, match="no primary waits"):
                await client.fail_back()
            await client.fail_over(force=force)
            assert (b.state, b.ha.epoch) == ("active", 2)
            status = await client.ha()
            assert (status.policy, status.acting, status.acting_url) == ("shared_store_backup", "b", BACKUP)
            await trio.sleep(2)
            await client.fail_back()
            assert (a.state, a.ha.epoch, b.state) == ("active", 3, "waiting")
            assert (await client.queue("q")).ready == 1
        nursery.cancel_scope.cancel()


async def test_an_order_by_a_message_is_answered_and_carried_out() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await trio.sleep(1)
        async with ground.client() as client:

            async def ask(operation: str, **arguments: Any) -> Any:
                body, about = json.dumps(arguments).encode(), {"operation": operation}
                answer = await client.request("activemq.management", body, properties=about, timeout=10)
                return json.loads(answer.body)

            found = await ask("ha")
            assert found["waiting"] == [{"waiting_name": "b", "waiting_url": BACKUP}]
            assert await ask("fail_over") == {"epoch": 1}
            await b.ha.wait_for(phase="active", timeout=5)
        nursery.cancel_scope.cancel()


async def test_a_hand_over_that_nobody_follows_is_told() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await trio.sleep(1)
        async with ground.client() as client:
            ground.disk.faults.inject("move_directory", error=5, times=float("inf"))
            with pytest.raises(CallTimeoutError) as caught:
                await client.fail_over(timeout=2)
            assert caught.value.outcome == "unknown"
            ground.disk.faults.clear()
        nursery.cancel_scope.cancel()


async def test_it_takes_the_permission_to_manage_high_availability() -> None:
    security = Security(
        users={"ops": "canary-ops", "ha": "canary-ha"},
        roles={"ops": {"ops"}, "ha": {"ha"}},
        permissions={"activemq.#": Permissions(manage={"ops"}), "$meshq.ha": Permissions(manage={"ha"})},
    )
    async with pair() as ground, trio.open_nursery() as nursery:
        await start(ground, nursery, ground.broker("a", SharedStorePrimary(), security=security))
        async with ground.client(user="ops", password="canary-ops") as client:
            assert (await client.ha()).role == "primary"
            with pytest.raises(SecurityError, match=r"'manage' at '\$meshq\.ha'"):
                await client.fail_over()
            with pytest.raises(SecurityError, match=r"'manage' at '\$meshq\.ha'"):
                await client.fail_back()
        async with ground.client(user="ha", password="canary-ha") as client:
            with pytest.raises(RefusedError):
                await client.fail_over()
        nursery.cancel_scope.cancel()
