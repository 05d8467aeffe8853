"""The role of a broker's node, as tasks of asyncio see it."""

from __future__ import annotations

from typing import Final

from meshq import node as trio_node
from meshq.aio._loop_thread import TaskLoop, forwarded
from meshq.node import RoleFigures


class HighAvailability(RoleFigures):
    """The role of a broker's node among the nodes of its pair; every field is a plain read."""

    def __init__(self, inner: trio_node.HighAvailability, loop: TaskLoop) -> None:
        super().__init__(inner._run)
        self._inner = inner
        self._call = loop.call

    wait_for: Final = forwarded(trio_node.HighAvailability.wait_for)
    fail_over: Final = forwarded(trio_node.HighAvailability.fail_over)
    fail_back: Final = forwarded(trio_node.HighAvailability.fail_back)
