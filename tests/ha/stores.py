"""A simulated disk on which nodes compete for one directory."""

from __future__ import annotations

from typing import Any

import attrs

from meshq.abc import NodeControl
from meshq.env import real_env
from meshq.testing import InlineThreads, SimDisk

ID = bytes(16)


class Store:
    """A disk on which nodes compete for one directory."""

    def __init__(self) -> None:
        self.disk = SimDisk()

    def control(self, name: str, *, wanted_id: bytes | None = None, **parts: Any) -> NodeControl:
        env = attrs.evolve(real_env(), local={}, disk=self.disk.mount(), threads=InlineThreads(), host="h", pid=7)
        env = attrs.evolve(env, **parts)
        return NodeControl(
            name=name,
            node_id=ID,
            instance=ID,
            store=ID,
            connectors={},
            env=env,
            data_dir="/data",
            url=lambda: f"tcp://{name}:1",
            wanted_id=wanted_id,
        )
