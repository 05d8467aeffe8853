"""A node of the demo with its consumers, as the director sees them, and the ports of all nodes."""

from __future__ import annotations

import attrs
import trio

from meshq.demo._process import Child


@attrs.define(eq=False)
class Member:
    """A node of the demo: its processes, and its settings for every start of the broker."""

    number: int
    data_dir: str
    #: Where clients find it, and where other nodes do (0: there, too).
    port: int = 0
    port_for_nodes: int = 0
    #: The same as the broker says it, of its last life: empty before.
    url: str = ""
    url_for_nodes: str = ""
    #: Whether it has left for good.
    left: bool = False
    process: Child | None = None
    consumers: list[Child] = attrs.field(factory=list)

    @property
    def broker(self) -> Child:
        """The broker's process, of this life or the last one."""
        assert self.process is not None
        return self.process

    @property
    def names(self) -> list[str]:
        """The names of the node's consumers."""
        return [consumer.name for consumer in self.consumers]


async def free_ports(count: int) -> list[int]:
    """Return free ports, all different.

    Checkpoint: always.
    Cancellation: nothing is kept.
    """
    listeners: list[trio.SocketListener] = []
    try:
        for _ in range(count):
            listeners += await trio.open_tcp_listeners(0, host="127.0.0.1")
        return [listener.socket.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.socket.close()
