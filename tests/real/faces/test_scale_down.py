"""A node that scales down at its stop, over real sockets: clients of every face are told, and go on at the target."""

from __future__ import annotations

from typing import Any

from meshq import ClusterConnection, ScaledDown
from tests.cluster.kit import free_ports
from tests.real.faces.kit import Face, promise, received

#: Short, so that nobody waits for a link.
QUICK: dict[str, Any] = {"retry_interval": 0.02, "max_retry_interval": 0.05}


def mesh(*others: str) -> ClusterConnection:
    return ClusterConnection("mesh", static_connectors=others, user="mesh", password="ours alone", **QUICK)


@promise
async def test_a_client_goes_on_where_it_is_told_with_its_consumer_and_what_was_there(face: Face) -> None:
    # Nodes that are told port 0 are not dialed.
    first, second = ([f"tcp://127.0.0.1:{port}"] for port in free_ports(2))
    async with (
        face.broker("stays", services=[mesh()], acceptors=first, queues=["q"]) as stays,
        face.broker("goes", services=[mesh(*first)], acceptors=second, queues=["q"]) as goes,
        face.connected(goes.urls[0], **QUICK) as client,
        client.consumer("q") as consumer,
    ):
        await face.until(lambda: len(client.topology()) == 2)
        events = client.events()
        await client.send_many("q", [b"first", b"second"], durable=False)
        held = await received(consumer)
        assert held.body == b"first"
        await goes.stop(scale_down=True)
        await client.send("q", b"third")
        assert client.statistics().node_name == "stays"
        found = [await received(consumer) for _ in range(3)]
        assert [one.body for one in found] == [b"first", b"second", b"third"]
        assert found[0].redelivered
        while type(told := await events.__anext__()) is not ScaledDown:
            pass
        assert (told.target.name, told.target.primary) == ("stays", stays.urls[0])
