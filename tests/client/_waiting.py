"""Calls in tasks of their own, and waiting for what they do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from meshq.client import Client
from meshq.errors import MeshqError
from tests.client._server import FakeNetwork, FakeNode


class Result:
    """What became of a call in a task of its own."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: MeshqError | None = None
        self.done = False

    async def of(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        try:
            self.value = await call(*arguments)
        except MeshqError as error:
            self.error = error
        self.done = True


async def until(holds: Callable[[], bool]) -> None:
    """Let time pass until something holds."""
    with trio.fail_after(1_000):
        while not holds():  # noqa: ASYNC110 - what holds is anything
            await trio.sleep(0.01)


async def until_attached(client: Client, connections: int) -> None:
    await until(lambda: client.statistics().connected == connections and client.statistics().state == "connected")


async def cut_off(client: Client, node: FakeNode, network: FakeNetwork) -> None:
    """The node is started anew, and cannot be reached; the client has heard of it."""
    network.nodes.clear()
    node.restart()
    await until(lambda: client.statistics().state == "reconnecting")
