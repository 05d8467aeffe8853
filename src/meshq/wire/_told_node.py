"""The headers of NODE frames: nodes of a cluster into headers, and checked headers into nodes."""

from __future__ import annotations

from functools import lru_cache

from meshq.abc import NodeDescription, ToldNode
from meshq.endpoint import told_place
from meshq.ids import IDENTITY_BYTES
from meshq.wire._link_headers import NodeNews
from meshq.wire._refusals import violation


def node_news(one: ToldNode) -> NodeNews:
    """Return the header that describes a node."""
    about = one.about
    return NodeNews(
        node_id=about.node_id,
        instance=about.instance,
        version=about.version,
        node_name=about.name,
        primary=about.primary,
        backup=about.backup,
        distance=one.distance,
        witness=one.witness,
        leaving=about.leaving,
        successor=about.successor,
        group=about.group,
        target=about.target,
        connector=about.connector,
    )


def told_node(news: NodeNews) -> ToldNode:
    """Return the node that a header describes.

    Raises:
        RemoteProtocolError: no node can be so.
    """
    places = (news.primary, news.backup)
    sizes = {len(news.instance), len(news.witness), len(news.successor), len(news.target)} - {0, IDENTITY_BYTES}
    texts = news.node_name + news.group + news.connector
    if sizes or not all(map(_is_place, places)) or not texts.isprintable():
        raise violation("bad_header", "a node whose ids, name or places no node can have")
    about = NodeDescription(
        node_id=news.node_id,
        instance=news.instance,
        version=news.version,
        name=news.node_name,
        primary=news.primary,
        backup=news.backup,
        leaving=news.leaving,
        successor=news.successor,
        group=news.group,
        target=news.target,
        connector=news.connector,
    )
    return ToldNode(about=about, distance=news.distance, witness=news.witness)


@lru_cache(maxsize=4096)
def _is_place(place: str) -> bool:
    """Whether this is a place as nodes tell it.  Each node of a cluster tells the places of all the others."""
    return place == told_place(place)
