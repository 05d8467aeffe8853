"""The store of a broker that has it alone, also where a pair has shared it before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from meshq.abc import Env
from meshq.errors import BusyError
from meshq.ha import SharedDirectory
from meshq.node._settings import BrokerSettings


@asynccontextmanager
async def store_of_one_node(settings: BrokerSettings, env: Env) -> AsyncIterator[BrokerSettings]:
    """Surround the life of a broker without a pair; gives its settings, with the directory that the store is in.

    A plain directory stays as it is; of a directory with epochs the next one begins.

    Raises:
        BusyError: another node has the store.
    """
    if settings.data_dir is None:
        yield settings
        return
    shared = SharedDirectory(env.disk, settings.data_dir)
    if not await env.threads.run(shared.is_shared):
        yield settings
        return
    lock = shared.try_lock()
    if lock is None:
        raise BusyError(f"the store in {settings.data_dir} is open already, here or in another process")
    try:
        epoch = await env.threads.run(shared.begin)
        yield attrs.evolve(settings, data_dir=epoch.directory)
    finally:
        lock.close()
