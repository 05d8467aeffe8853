"""The entry of the demo's processes: ``python -m meshq.demo._child ROLE ARGUMENT...``.

Standard input brings commands, standard output is kept for reports: what anybody prints goes to standard error, which
the parent shows if something fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from meshq.demo._broker_process import run_broker, run_finder
from meshq.demo._consumer_process import run_consumer
from meshq.demo._parent import Parent
from meshq.demo._producer_process import run_producer

ROLES: Final[dict[str, Callable[..., Awaitable[None]]]] = {
    "broker": run_broker,
    "finder": run_finder,
    "producer": run_producer,
    "consumer": run_consumer,
}


async def _play(role: Callable[..., Awaitable[None]], reports: int, arguments: list[Any]) -> None:
    async with trio.lowlevel.FdStream(os.dup(0)) as commands, trio.lowlevel.FdStream(reports) as stream:
        await role(Parent(commands, stream), *arguments)


def main() -> None:
    """Play the role that the command line names."""
    reports = os.dup(1)
    os.dup2(2, 1)
    role, *arguments = sys.argv[1:]
    trio.run(_play, ROLES[role], reports, arguments)


if __name__ == "__main__":
    main()
