"""The process of the witnesses of ``meshq_process_cluster(ha="replication")``: three, which are always there.

Its argument is a JSON object: the ``directory`` of their journals, and their ``urls``.  It writes ``{}`` once all of
them listen, and ends when nothing more can be read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import trio

from meshq.ha.quorum.mesh import MeshQuorum, QuorumNode
from meshq.testing.kit._pairs import SESSION_S

WITNESSES: Final = 3
PASSWORD: Final = "theirs"


def quorum_of(urls: list[str]) -> MeshQuorum:
    """Make the quorum as a node asks it."""
    return MeshQuorum(urls, password=PASSWORD, session=SESSION_S)


async def serve(settings: Mapping[str, Any]) -> None:
    """Run the witnesses until the test is over.  Checkpoint: always.  Cancellation: ends them.

    Raises:
        MeshqError: a witness has failed.
    """
    async with AsyncExitStack() as stack:
        for number, url in enumerate(settings["urls"]):
            place = os.path.join(settings["directory"], f"w{number}")
            await stack.enter_async_context(
                QuorumNode(f"w{number}", data_dir=place, acceptors=[url], password=PASSWORD)
            )
        asked = await stack.enter_async_context(trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())))
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        while await asked.receive_some():
            pass


if __name__ == "__main__":
    trio.run(serve, json.loads(sys.argv[1]))
