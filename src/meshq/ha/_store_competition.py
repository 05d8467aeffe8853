"""A node joins the competition for a shared store, and leaves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from meshq.abc import Activation, NodeControl
from meshq.errors import MeshqError
from meshq.ha._store_activation import StoreActivation
from meshq.ha._store_settings import StoreRules


@asynccontextmanager
async def joined(rules: StoreRules, control: NodeControl, root: str) -> AsyncIterator[Activation]:
    """Join the competition, with the tasks of a node that waits and of one that has the store."""
    failure: MeshqError | OSError | None = None
    async with trio.open_nursery() as nursery:
        activation = StoreActivation(rules, control, root)
        nursery.start_soon(activation.keep)
        if rules.check_hosts:
            nursery.start_soon(activation.check_hosts)
        try:
            yield activation
        except (MeshqError, OSError) as error:
            # It leaves the block as it was raised, in no group.
            failure = error
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await activation.leave()
    if failure is not None:
        raise failure
