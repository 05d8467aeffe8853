"""Passwords, keys, bodies and values of properties: never in a log, a traceback, a record or what ``repr`` shows."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

import pytest

from meshq import (
    TLS,
    Acceptor,
    Broker,
    MeshqError,
    Message,
    Permissions,
    Security,
    SecurityError,
    connect,
)
from tests.env.authorities import Authority

AUTHORITY = Authority("ours")
BODY, VALUE = b"canary-body", "canary-value"
SECURITY = Security(
    users={"app": "canary-password", "ops": "canary-other"},
    certificates={"CN=app": "app"},
    roles={"app": {"apps"}, "ops": {"operators"}},
    permissions={
        "#": Permissions(send={"apps"}, consume={"apps"}, create={"apps"}, manage={"operators"}, browse={"apps"})
    },
)


async def test_a_life_with_secrets_shows_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[object] = [SECURITY]
    ours = AUTHORITY.write(tmp_path / "ours.pem")
    tls = TLS(
        certificate=AUTHORITY.issue(tmp_path / "broker.pem", "127.0.0.1"),
        authorities=ours,
        client_certificates="optional",
    )
    broker = Broker("hq", data_dir=None, acceptors=[Acceptor("tls://127.0.0.1:0", tls=tls)], security=SECURITY)
    events = broker.events()
    believed = TLS(authorities=ours)
    async with broker:
        url = broker.urls[0]
        async with (
            connect(url, user="app", password="canary-password", tls=believed) as client,
            connect(url, user="ops", password="canary-other", tls=believed) as ops,
        ):
            async with client.subscribe("activemq.notifications", window=100) as told:
                message = Message(BODY, properties={"secret": VALUE})
                shown += [message, client, client.statistics(), ops]
                await client.send_many("orders", [message])
                async with client.consumer("orders") as consumer:
                    delivery = await consumer.receive(timeout=10)
                    assert delivery is not None and delivery.body == BODY
                    shown += [delivery, consumer, delivery.message_id, await ops.trace(delivery.message_id)]
                    await delivery.reject()
                shown += [await ops.queue("orders"), await ops.explain_route("orders", {"secret": VALUE})]
                shown += [item for notification in await told.receive_many(100, timeout=5) for item in
                          (notification, dict(notification.properties))]  # fmt: skip
            shown += await failures(url, believed, client)
        shown += [broker, broker.statistics(), vars(broker), broker._node and vars(broker._node)]
        assert broker._node is not None
        core = broker._node.core
        shown += [core.access.of(("client", "app")), *core.sessions, *core.router.queues.values()]
    shown += [event async for event in events]
    text = "".join(f"{one!r}{one}" for one in shown) + caplog.text
    assert "canary" not in text and "***" in text
    assert {"login_refused", "forbidden"} <= {getattr(record, "event", "") for record in caplog.records}


async def failures(url: str, tls: TLS, client: object) -> list[str]:
    """The tracebacks of everything that goes wrong with a secret in it."""
    assert hasattr(client, "send")
    found: list[str] = []

    def caught(error: MeshqError) -> None:
        found.append("".join(traceback.format_exception(error)))

    for user, password in (("app", "canary-wrong"), ("nobody", "canary-password")):
        with pytest.raises(SecurityError) as refused:
            async with connect(url, user=user, password=password, tls=tls):
                pytest.fail("it came in")
        caught(refused.value)
    for wrong in (
        {"properties": {"secret": (VALUE,)}},
        {"properties": {"secret": VALUE * 10_000}},
        {"duplicate_id": VALUE * 100},
    ):
        with pytest.raises(MeshqError) as error:
            await client.send("orders", BODY, **wrong)
        caught(error.value)
    with pytest.raises(MeshqError) as forbidden:
        await client.send("orders", BODY, properties={"secret": VALUE}, reply_to="$temporary.somebody")
    caught(forbidden.value)
    with pytest.raises(MeshqError) as purged:
        await client.purge_queue("orders")  # type: ignore[attr-defined]
    caught(purged.value)
    assert len(found) == 7
    return found
