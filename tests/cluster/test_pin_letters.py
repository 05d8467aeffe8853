"""Letters about pins of message groups that no node writes, and nodes that answer none."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.errors import MeshqError
from meshq.wire import encode_map
from tests.cluster.kit import Mesh, mesh

NAME = {"k0": "hold", "q0": "q", "g0": "red", "n0": ""}


def letter_from(nodes: Mesh, name: str, **changed: Any) -> dict[str, Any]:
    """A letter as a node writes it; ``changed``: what it has instead."""
    ids = {one: bytes(broker.node_id).hex() for one, broker in nodes.brokers.items()}
    written = {
        "cluster": "mesh",
        "node_id": ids[name],
        "instance": "0" * 32,
        "serial": 1,
        "members": " ".join(sorted(ids.values())),
        "names": encode_map(NAME),
        "begins": True,
        "complete": True,
        "lacks": False,
    }
    return {**written, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"instance": "two words"},
        {"instance": ""},
        {"instance": "0" * 31 + "G"},
        {"names": encode_map({**NAME, "k0": "lie"})},
        {"names": encode_map({**NAME, "q0": 7})},
        {"names": encode_map({**NAME, "k1": "hold", "x": 1, "y": 1, "z": 1})},
        {"names": b"no map"},
        {"names": bytes(5_000)},
    ],
)
async def test_a_letter_that_no_node_writes_is_refused_and_leaves_nothing_behind(changed: dict[str, Any]) -> None:
    async with mesh("ab", root="simulated", broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        with pytest.raises(MeshqError):
            nodes.known("a")._questions.pin_groups(letter_from(nodes, "b", **changed))
        assert nodes.known("a")._grouping.arbiter.pins == {}
        await nodes.kill("a")
        await nodes.start("a")
        await nodes.joined()
