"""Where the calls of a client are made and looked at: a broker with two clients, and blocks to be left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

import attrs
import trio

from meshq import Broker, Client

T = TypeVar("T")


@attrs.define(eq=False)
class Ground:
    """Where a call is made: a broker with two clients."""

    broker: Broker
    client: Client
    other: Client
    nursery: trio.Nursery
    another: Callable[[], Client]
    _stack: AsyncExitStack = attrs.field(factory=AsyncExitStack)

    async def keep(self, block: AbstractAsyncContextManager[T]) -> T:
        """Enter a block that is left at the end."""
        return await self._stack.enter_async_context(block)

    async def leave(self) -> None:
        """Leave all of them."""
        await self._stack.aclose()
        self.nursery.cancel_scope.cancel()
