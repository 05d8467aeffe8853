"""The clients that a connector has at the nodes of a cluster: which of them it makes anew."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import attrs
import pytest

from meshq.spark._nodes import Brokers, NodeAddress, NodeLink
from meshq.spark._options_plan import access_of, read_options

NODE, OTHER = "1f" * 16, "2f" * 16
ADDRESS = NodeAddress(NODE, ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"))


@attrs.define
class _Client:
    """Stands for a client: where it is, and as what."""

    state: str = "connected"
    node_id: bytes = bytes.fromhex(NODE)

    def statistics(self) -> _Client:
        return self


@pytest.mark.parametrize(
    ("state", "node", "again"),
    [("connected", NODE, 0), ("reconnecting", NODE, 0), ("reconnecting", OTHER, 0), ("connected", OTHER, 1)],
)
def test_a_client_that_has_come_to_another_node_makes_room_for_one_at_the_right_node(
    monkeypatch: pytest.MonkeyPatch, state: str, node: str, again: int
) -> None:
    clients: list[_Client] = []
    ended: list[_Client] = []

    def link(brokers: Brokers, address: NodeAddress, **changed: object) -> NodeLink:
        client: Any = _Client()
        clients.append(client)
        ending = ExitStack()
        ending.callback(ended.append, client)
        return NodeLink(address, client, ending)

    monkeypatch.setattr(Brokers, "_link", link)
    monkeypatch.setattr(Brokers, "addresses", lambda brokers: {NODE: ADDRESS})
    given = {"url": "tcp://127.0.0.1:1", "subscribe": "orders"}
    with Brokers(access_of(read_options(given, "batch read"))) as brokers:
        assert set(brokers.links()) == {NODE}
        clients[0].state, clients[0].node_id = state, bytes.fromhex(node)
        found = brokers.links()
        assert set(found) == ({NODE} if (state, node) == ("connected", NODE) or again else set())
        assert len(clients) == 1 + again and ended == clients[:again]
    assert ended == clients
