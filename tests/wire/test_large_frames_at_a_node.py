"""What a node answers to blocks and reads that no client of ours would send."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.wire import FLAG_DURABLE, FLAG_LARGE, FLAG_LAST, Consume, FrameType, Produce, Read, Send, encode_run
from tests.wire._frames_strategy import Step
from tests.wire._node_peer import MemoryNode, NodePeer
from tests.wire.test_refusals_of_a_node import PRODUCER, attached, said

BLOCK = bytes(limits.LARGE_BLOCK_BYTES)


def block(number: int, *, channel: int = 2, call: int = 0, body: bytes = BLOCK, flags: int = 0) -> Step:
    return said(FrameType.BLOCK, channel=channel, number=number, first=call or number, body=body, flags=flags)


def send(number: int, upload: int, *, body: bytes = b"", channel: int = 1) -> Step:
    run = encode_run([body])
    flags = FLAG_DURABLE | FLAG_LARGE
    return said(
        FrameType.SEND,
        Send(upload=upload),
        channel=channel,
        number=number,
        first=1,
        count=1,
        table=run.table,
        body=run.body,
        flags=flags,
    )


def producers(node: MemoryNode | None = None) -> NodePeer:
    peer = attached(node or MemoryNode())
    peer.say(said(FrameType.PRODUCE, Produce(producer=PRODUCER, address="a"), channel=1, number=1, first=1))
    return peer


def test_a_body_and_its_message_are_taken_and_read_and_forgotten() -> None:
    node = MemoryNode()
    peer = producers(node)
    peer.say(block(2), block(3, body=b"end", flags=FLAG_LAST), send(4, 2))
    peer.say(said(FrameType.CONSUME, Consume(queue="a", window=5, window_bytes=1 << 20), channel=3, number=5, first=5))
    assert peer.refusals == []
    peer.say(said(FrameType.READ, Read(tag=1, block=1), channel=3, number=6, first=6))
    (piece,) = peer.heard_of(FrameType.PIECE)
    assert (piece.first, bytes(piece.body)) == (6, b"end")
    held = node.core.memory.used_bytes
    assert held > len(BLOCK)
    assert node.core.router.queues["a"].counts.unacked == 1


def test_blocks_that_cannot_be_end_the_session() -> None:
    for steps, refusal in (
        ([block(2, body=b"short")], "too_large"),
        ([block(2, body=b"")], "too_large"),
        ([block(2, body=BLOCK + b"x")], "too_large"),
        ([block(2, flags=FLAG_LAST), block(3)], "too_large"),
        ([block(2, channel=1)], "bad_channel"),
        ([block(2), block(3, call=1)], None),
        ([block(2), send(3, 2)], "bad_channel"),
        ([send(2, 9)], "bad_channel"),
        ([block(2, flags=FLAG_LAST), send(3, 2, body=b"and a body")], "bad_channel"),
        ([block(2, flags=FLAG_LAST), send(3, 2), send(4, 2)], None),
    ):
        node = MemoryNode()
        peer = producers(node)
        peer.say(*steps)
        assert peer.refusals == ([refusal] if refusal is not None else peer.refusals)
        if refusal is not None:
            # Nothing of it is left.
            assert node.core.memory.used_bytes == 0


def test_more_bodies_at_once_than_allowed_are_refused_one_by_one() -> None:
    peer = producers()
    count = limits.UPLOADS_MAX
    peer.say(*[block(2 + number, channel=2 + number, body=BLOCK) for number in range(count + 1)])
    assert peer.refusals == ["too_many"]


def test_refused_bodies_that_nobody_gives_up_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNELS_MAX", 40)
    node = MemoryNode()
    peer = producers(node)
    peer.say(*[block(2 + number, channel=2 + number) for number in range(40)])
    assert peer.refusals == ["too_many"] * (40 - limits.UPLOADS_MAX) and node.sessions.by_number
    peer.say(block(42, channel=42))
    assert not node.sessions.by_number and node.core.memory.used_bytes == 0


def test_a_session_that_ends_leaves_no_blocks() -> None:
    node = MemoryNode()
    peer = producers(node)
    peer.say(block(2), block(3), block(4, channel=3))
    assert node.core.memory.used_bytes == 3 * len(BLOCK)
    for session in list(node.sessions.by_number.values()):
        session.end()
    assert node.core.memory.used_bytes == 0


def test_only_what_is_held_is_read_and_only_its_blocks() -> None:
    for read, refusal in (
        (Read(tag=2, block=0), "bad_tag"),
        (Read(tag=0, block=0), "bad_tag"),
        (Read(tag=1, block=2), "bad_tag"),
    ):
        peer = producers()
        peer.say(block(2), block(3, body=b"end", flags=FLAG_LAST), send(4, 2))
        consume = Consume(queue="a", window=5, window_bytes=1 << 20)
        peer.say(said(FrameType.CONSUME, consume, channel=3, number=5, first=5))
        peer.say(said(FrameType.READ, read, channel=3, number=6, first=6))
        assert peer.refusals == [refusal]
