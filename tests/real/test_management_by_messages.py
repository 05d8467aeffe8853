"""Management by messages over the network: every operation that a call has, asked for by a message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshq import Bridge, Broker, BrokerBalancer, Client, Permissions, Security, SecurityError, connect
from meshq.broker.management._management import OPERATIONS

CURSOR: dict[str, Any] = {"queue": "orders", "name": "audit"}
#: The fence is what the cursor was opened with.
OWNED = {**CURSOR, "fence": 0}
#: A life in requests: each operation with its arguments, and what the answer has at least.
LIFE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("create_address", {"name": "news", "routing": "multicast"}, {"name": "news"}),
    ("create_queue", {"name": "desk", "address": "news", "routing": "multicast"}, {"address": "news"}),
    ("create_queue", {"name": "orders", "filter": "region = 'emea'"}, {"name": "orders"}),
    ("create_temporary_queue", {}, {}),
    ("queue", {"name": "orders"}, {"ready": 0, "filter": "region = 'emea'"}),
    ("queues", {}, {"more": False}),
    ("create_divert", {"name": "d", "address": "orders", "forwarding_address": "copies"}, {"name": "d"}),
    ("diverts", {}, {"more": False}),
    ("prepared", {}, {"more": False}),
    ("bridges", {}, {"more": False}),
    ("pause_bridge", {"name": "b"}, {}),
    ("resume_bridge", {"name": "b"}, {}),
    ("broker", {}, {"name": "hq", "state": "active", "durable": False}),
    ("ha", {}, {"policy": "live_only", "role": "live_only", "waiting": [], "more": False}),
    ("hosted_backups", {}, {"backups": 0, "max_backups": 0, "mine_ready": False, "hosted": [], "more": False}),
    ("balancers", {}, {"more": False}),
    ("balancer_targets", {"name": "lb"}, {"name": "lb", "active": True, "targets": [], "more": False}),
    ("balancer_target", {"name": "lb", "key": "here"}, {"found": True, "local": True}),
    ("balancer_target", {"name": "lb", "key": "there"}, {"found": False}),
    ("explain_balancer", {"name": "lb", "key": "here"}, {"outcome": "local", "more": False}),
    ("set_balancer_filter", {"name": "lb", "setting": "local_target_filter", "text": "^there$"}, {}),
    ("delete_divert", {"name": "d"}, {}),
    ("set_address_settings", {"pattern": "orders", "max_delivery_attempts": 3}, {}),
    ("address_settings", {"address": "orders"}, {"max_delivery_attempts": 3, "max_redelivery_delay": "inf"}),
    ("remove_address_settings", {"pattern": "orders"}, {}),
    ("pause_queue", {"name": "orders"}, {}),
    ("resume_queue", {"name": "orders"}, {}),
    ("move_messages", {"name": "orders", "address": "desk.moved", "limit": 1}, {"moved": 0}),
    ("redrive", {"name": "orders"}, {"moved": 0}),
    ("explain_route", {"address": "orders", "properties": {"region": "emea"}}, {"exists": True, "more": False}),
    ("trace", {"message_id": "00" * 16 + "-1"}, {"accepted": False, "sightings": []}),
    ("trace_hops", {"message_id": "00" * 16 + "-1"}, {"forgotten": 0, "hops": []}),
    ("explain_arrival", {"address": "orders", "name": "orders"}, {"exists": True}),
    ("stuck", {}, {"stuck": [], "more": False}),
    ("cluster_nodes", {}, {"more": False}),
    ("node_queue", {"name": "orders"}, {"exists": True, "paused": False, "parts": []}),
    (
        "ask_node",
        {"node_id": "00" * 16, "question": "node_queue", "arguments": {"name": "orders"}},
        {"reached": False, "why": "it is not known here"},
    ),
    ("open_cursor", {"queue": "orders", "name": "audit", "token": "t", "lease_ms": 30_000}, {"held": False}),
    ("pin_cursor", {**OWNED, "number": 1}, {"pinned": 1}),
    ("ack_cursor", {**OWNED, "number": 1}, {"processed": 1}),
    ("renew_cursor", OWNED, {"pinned": 1, "processed": 1}),
    ("cursor_lag", CURSOR, {"messages": 0, "bytes": 0}),
    ("holes", {"queue": "orders", "lo": 1, "hi": 1}, {"holes": [], "more": False}),
    ("cursors", {}, {"more": False}),
    ("release_cursor", OWNED, {}),
    ("delete_cursor", CURSOR, {}),
    ("commit_batch", {"sink": "nightly", "batch": 1, "stages": []}, {"already": False, "messages": 0}),
    ("commit_batch", {"sink": "nightly", "batch": 1, "stages": [7]}, {"already": True}),
    ("commit_batch", {"sink": "nightly", "batch": 1, "stages": [], "purge": "orders"}, {"already": True}),
    ("abandon_batch", {"sink": "nightly", "batch": 2}, {"stages": 0}),
    ("sinks", {}, {"sinks": [{"sink": "nightly", "user": "", "batch": 1, "placing": 0, "stages": 0}], "more": False}),
    ("stages", {"sink": "nightly"}, {"stages": [], "more": False}),
    ("delete_sink", {"sink": "nightly"}, {}),
    ("purge_queue", {"name": "orders"}, {"removed": 0}),
    ("delete_queue", {"name": "orders"}, {"removed": 0}),
    ("unsubscribe", {"address": "news", "name": "mine"}, {"removed": 0}),
]


async def ask(client: Client, operation: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to a request, and its properties."""
    body = json.dumps(arguments).encode()
    answer = await client.request("activemq.management", body, properties={"operation": operation}, timeout=10)
    return json.loads(answer.body), dict(answer.properties)


async def test_every_operation_is_carried_out_for_a_message() -> None:
    # There is no other node whose messages could be given back, that shares its groups with this one, that asks for
    # a backup or is gone for good, or that could take over.
    alone = {"give_back", "pin_groups", "host_backup", "end_backup", "fail_over", "fail_back"}
    assert {operation for operation, _, _ in LIFE} | alone == set(OPERATIONS)
    async with (
        Broker(
            "hq",
            data_dir=None,
            acceptors=["tcp://127.0.0.1:0"],
            services=[
                Bridge("b", queue="out", target="inproc://nowhere"),
                BrokerBalancer("lb", local_target_filter="here"),
            ],
        ) as broker,
        connect(broker.urls[0]) as client,
        connect(broker.urls[0]) as other,
    ):
        async with other.subscribe("news", name="mine", durable=True):
            pass
        fence = {"fence": 0}
        for operation, arguments, expected in LIFE:
            if "fence" in arguments:
                arguments = arguments | fence
            values, properties = await ask(client, operation, **arguments)
            assert properties == {"operation": operation, "outcome": "done", "code": ""}, values
            assert values == {**values, **expected}
            fence = {"fence": values.get("fence", fence["fence"])}
        assert (await ask(client, "queue", name="orders"))[1]["code"] == "not_found"
        assert (await ask(client, "give_back", node_id="0" * 32))[1]["code"] == "not_found"
        assert (await ask(client, "end_backup", name="colocated_backup_1"))[1]["code"] == "not_found"
        for order in ("fail_over", "fail_back"):
            answer = (await ask(client, order))[1]
            assert (answer["outcome"], answer["code"]) == ("not_done", "no_successor"), answer
        assert "orders" not in await client.queues()


async def test_it_takes_the_permission_to_manage() -> None:
    security = Security(
        users={"app": "canary-app", "ops": "canary-ops"},
        roles={"app": {"apps"}, "ops": {"operators"}},
        permissions={
            "#": Permissions(send={"apps"}, manage={"operators"}, create={"operators"}),
            "$temporary.#": Permissions(create={"apps", "operators"}),
            "secret.#": Permissions(send={"apps"}),
        },
    )
    async with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"], security=security) as broker:
        url = broker.urls[0]
        async with connect(url, user="app", password="canary-app") as app:
            with pytest.raises(SecurityError, match=r"'app' lacks the permission 'manage' at 'activemq\.management'"):
                await ask(app, "queues")
        async with connect(url, user="ops", password="canary-ops") as ops:
            assert (await ask(ops, "create_queue", name="orders"))[1]["outcome"] == "done"
            values, properties = await ask(ops, "create_queue", name="secret.orders")
            assert properties["code"] == "forbidden" and "'create' at 'secret.orders'" in values["error"]
