"""Links of a network over TLS: each connector shows a certificate of its own, and believes an authority of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshq import TLS, Acceptor, Broker, CallTimeoutError, NetworkConnector, Permissions, Security
from tests.env.authorities import Authority


def partner(name: str, folder: Path, authority: Authority) -> Broker:
    """A broker of another owner, who believes one authority only, and knows brokers by their certificates."""
    tls = TLS(
        certificate=authority.issue(folder / f"{name}.pem", "127.0.0.1"),
        authorities=authority.write(folder / f"{name}-believes.pem"),
        client_certificates="required",
    )
    security = Security(
        certificates={"DNS=hub.example": "hub"},
        roles={"hub": {"links"}},
        permissions={"#": Permissions(send={"links"})},
    )
    return Broker(name, data_dir=None, acceptors=[Acceptor("tls://127.0.0.1:0", tls=tls)], security=security)


def out(name: str, there: Broker, folder: Path, shown: Authority, believed: Authority) -> NetworkConnector:
    """A connector to a broker, with a certificate of one authority, that believes another or the same."""
    tls = TLS(
        certificate=shown.issue(folder / f"hub-at-{name}.pem", "hub.example"),
        authorities=believed.write(folder / f"hub-believes-{name}.pem"),
    )
    quick: dict[str, Any] = {"retry_interval": 0.05, "max_retry_interval": 0.05}
    return NetworkConnector(name, f"static:({there.urls[0]})", tls=tls, **quick)


async def test_each_connector_has_its_own_certificate_and_authority_and_one_is_mended_while_the_broker_runs(
    tmp_path: Path,
) -> None:
    east, west = Authority("east"), Authority("west")
    async with partner("east", tmp_path, east) as there, partner("west", tmp_path, west) as far:
        links = [out("to-east", there, tmp_path, east, east), out("to-west", far, tmp_path, east, west)]
        async with (
            Broker("hub", data_dir=None, services=links) as hub,
            hub.client() as here,
            there.client() as client,
            far.client() as other,
            client.consumer("e") as consumer,
            other.consumer("w") as further,
        ):
            await hub.network("to-east").wait_for(queue="e", consumers=1, timeout=20)
            await here.send("e", b"over TLS")
            first = await consumer.receive(timeout=20)
            assert first is not None and (first.body, first.path) == (b"over TLS", ("hub",))
            # What is shown to the west is not of its authority.
            await here.send("w", b"later")
            with pytest.raises(CallTimeoutError, match="0 of 1 links"):
                await hub.network("to-west").wait_for(timeout=0.2)
            (told,) = hub.network("to-west").bridges()
            assert told.state == "connecting" and "no TLS 1.3 with 127.0.0.1:" in str(told.last_error)
            await hub.remove_network("to-west")
            await hub.add_network(out("to-west", far, tmp_path, west, west))
            second = await further.receive(timeout=20)
            assert second is not None and second.body == b"later"
