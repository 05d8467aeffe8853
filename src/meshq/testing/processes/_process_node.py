"""The process of a node of ``meshq_process_cluster``: a broker that says how it is, and ends with its test.

Its argument is a JSON object: the node's ``name``, the ``directory`` of its store, the ``urls`` of all nodes by their
names, the names of ``queues``, and ``ha``, how nodes have backups.  It writes ``{}`` once it is active or waits, and
its view for each line that it reads; when nothing more can be read, the test is over, or has died, and the node stops.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from meshq.cluster import ClusterConnection
from meshq.node import Broker
from meshq.settings import AddressSettings
from meshq.testing.kit._pairs import ha_settings
from meshq.testing.kit._views import view_of

#: The name of the cluster connection, and its credentials.
CLUSTER = "cluster"


def broker_of(settings: Mapping[str, Any]) -> Broker:
    """Make the broker of a node."""
    name, urls = settings["name"], settings["urls"]
    connection = ClusterConnection(
        CLUSTER,
        connector=name,
        static_connectors=[other for other in urls if other != name],
        user=CLUSTER,
        password=CLUSTER,
    )
    return Broker(
        name,
        data_dir=settings["directory"],
        acceptors=[urls[name]],
        connectors=urls,
        services=[connection],
        queues=settings["queues"],
        address_settings={"#": AddressSettings(redistribution_delay=0.0)},
        **ha_settings(name, settings["ha"]),
    )


async def serve(settings: Mapping[str, Any]) -> None:
    """Run the node until its test is over.  Checkpoint: always.  Cancellation: ends the node.

    Raises:
        MeshqError: the broker has failed.
    """
    broker = broker_of(settings)
    names = {name: name for name in settings["urls"]}
    async with broker, trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as asked:
        _say({})
        while question := await asked.receive_some():
            for _ in range(question.count(b"\n")):
                _say(attrs.asdict(view_of(broker, settings["name"], broker.state, names)))


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(serve, json.loads(sys.argv[1]))
