"""The refusals of cursors: what a session does until the node answers with each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshq.wire import Call, Consume, Frame, FrameType, Header
from tests.wire._frames_strategy import Plan, Step
from tests.wire._node_peer import MemoryNode, NodePeer


def said(frame_type: FrameType, header: Header | None = None, **fields: object) -> Step:
    return Step(Frame(frame_type, header=header.encode() if header is not None else b"", **fields))


def attached(node: MemoryNode) -> NodePeer:
    peer = node.connect()
    peer.say(*Plan((), closes=False).render())
    return peer


def with_cursor(**options: object) -> tuple[MemoryNode, NodePeer]:
    """A node whose queue ``a`` has a cursor, and its owner, who has said three frames."""
    node = MemoryNode()
    peer = attached(node)
    opening = {"queue": "a", "name": "c", "token": "t", "lease_ms": 1_000, **options}
    flat = tuple(item for pair in opening.items() for item in pair)
    peer.say(said(FrameType.CALL, Call(operation="create_queue", arguments=("name", "a")), number=1, first=1))
    peer.say(said(FrameType.CALL, Call(operation="open_cursor", arguments=flat), number=2, first=2))
    return node, peer


def fence_of(node: MemoryNode) -> int:
    """The fence of the owner."""
    cursor = node.core.router.queues["a"].roster.cursor
    assert cursor is not None
    return cursor.facts.fence


def of_owner(operation: str, number: int, fence: int, *, name: str = "c") -> Step:
    """A call of an owner."""
    arguments = ("queue", "a", "name", name, "fence", fence)
    return said(FrameType.CALL, Call(operation=operation, arguments=arguments), number=number, first=number)


def cursor_held() -> NodePeer:
    _, peer = with_cursor()
    header = Consume(queue="a", window=1, window_bytes=1)
    peer.say(said(FrameType.CONSUME, header, channel=1, number=3, first=3))
    return peer


def cursor_taken() -> NodePeer:
    _, peer = with_cursor()
    peer.say(of_owner("renew_cursor", 3, 1))
    return peer


def cursor_released() -> NodePeer:
    node, peer = with_cursor()
    peer.say(of_owner("release_cursor", 3, fence_of(node)))
    peer.say(of_owner("renew_cursor", 4, fence_of(node)))
    return peer


def cursor_deleted() -> NodePeer:
    node, peer = with_cursor()
    peer.say(of_owner("renew_cursor", 3, fence_of(node), name="another"))
    return peer


def cursor_max_lag() -> NodePeer:
    node, peer = with_cursor(max_lag=1)
    header = Consume(queue="a", window=1, window_bytes=1, browse=True, lo=1, cursor="c", fence=fence_of(node))
    peer.say(said(FrameType.CONSUME, header, channel=1, number=3, first=3))
    queue = node.core.router.queues["a"]
    assert queue.roster.cursor is not None
    queue.roster.cursor.lease_until_ms = 0
    queue.counts.ready += 2
    node.core.second_passed()
    queue.counts.ready -= 2
    peer.feed(b"")
    return peer


CURSOR_SCENES: Final[dict[str, Callable[[], NodePeer]]] = {
    "cursor_held": cursor_held,
    "cursor_taken": cursor_taken,
    "cursor_released": cursor_released,
    "cursor_deleted": cursor_deleted,
    "cursor_max_lag": cursor_max_lag,
}
