"""The process that is killed."""

from __future__ import annotations

from meshq.demo._parent import Parent
from meshq.demo._report_format import Ready
from meshq.demo._settings import QUEUE
from meshq.node import Broker


async def run_broker(parent: Parent, data_dir: str, port: str) -> None:
    """Serve until the parent has had enough, then stop in peace."""
    async with Broker("demo", data_dir=data_dir, acceptors=[f"tcp://127.0.0.1:{port}"], queues=[QUEUE]) as broker:
        await parent.say(Ready(broker.urls[0]))
        while await parent.hear() is not None:
            continue
