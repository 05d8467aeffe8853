"""The entry of the demo's processes: ``python -m meshq.demo._child ROLE ARGUMENT...``.

Standard input brings commands, standard output is kept for reports: what anybody prints goes to standard error, which
the parent shows if something fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

import trio

from meshq.demo._parent import Parent

#: Where each role is: what another one needs is not loaded.
ROLES: Final[dict[str, tuple[str, str]]] = {
    "broker": ("meshq.demo._broker_process", "run_broker"),
    "finder": ("meshq.demo._broker_process", "run_finder"),
    "member": ("meshq.demo._paired", "run_pair_member"),
    "mesh_node": ("meshq.demo._sparked", "run_mesh_node"),
    "network": ("meshq.demo._networked", "run_network_broker"),
    "query": ("meshq.demo._sparked", "run_query"),
    "replica": ("meshq.demo._paired", "run_replica_member"),
    "witness": ("meshq.demo._paired", "run_witness"),
    "target": ("meshq.demo._balanced", "run_target"),
    "producer": ("meshq.demo._producer_process", "run_producer"),
    "consumer": ("meshq.demo._consumer_process", "run_consumer"),
}


async def _play(role: Callable[..., Awaitable[None]], reports: int, arguments: list[Any]) -> None:
    async with trio.lowlevel.FdStream(os.dup(0)) as commands, trio.lowlevel.FdStream(reports) as stream:
        await role(Parent(commands, stream), *arguments)


def main() -> None:
    """Play the role that the command line names."""
    reports = os.dup(1)
    os.dup2(2, 1)
    role, *arguments = sys.argv[1:]
    module, name = ROLES[role]
    trio.run(_play, getattr(import_module(module), name), reports, arguments)


if __name__ == "__main__":
    main()
