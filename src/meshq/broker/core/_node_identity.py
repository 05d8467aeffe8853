"""The identity of a node, which its peers check."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class NodeIdentity:
    """The name and the ids of a node, of its life and of its store."""

    name: str
    node_id: bytes
    #: This life of the node.
    instance: bytes
    #: The id of the journal; without a journal the id of this life of the node.
    store: bytes
