"""The same wrong frames, said to a node: to its own connection, session, router and queues."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from meshq import limits
from meshq.wire import (
    Consume,
    Frame,
    FrameType,
    Header,
    Produce,
    encode,
    encode_one,
    encode_ranges,
)
from tests.wire._frames_strategy import Mutation, Plan, Step, mutations, plans
from tests.wire._mutations import apply
from tests.wire._node_peer import MemoryNode, NodePeer
from tests.wire.test_wrong_frames import BATCH, BY_FRAMES, Tally, chunks

_PING = encode(Frame(FrameType.PING))


class Companion:
    """A well-behaved connection to the same node, which sends, receives and settles."""

    def __init__(self, node: MemoryNode) -> None:
        self.peer = node.connect()
        self.asked = 0
        self.served = 0
        self._number = 0
        self.peer.say(*Plan((), closes=False).render())
        produce = Produce(producer=b"companion" + bytes(7), address="companion")
        self._say(FrameType.PRODUCE, produce, channel=1, first=1)
        self._say(FrameType.CONSUME, Consume(queue="companion", window=9, window_bytes=limits.MIB), channel=2, first=2)
        assert len(self.peer.heard_of(FrameType.ANSWER)) == 2

    def _say(self, frame_type: FrameType, header: Header | None = None, **fields: object) -> None:
        self._number += 1
        data = header.encode() if header is not None else b""
        self.peer.say(Step(Frame(frame_type, number=self._number, header=data, **fields)))

    def answers(self) -> None:
        """The node hears it, and answers."""
        self.peer.feed(_PING)
        # It may have something else to say, as credit that another session gave back.
        assert len(self.peer.heard_of(FrameType.PONG)) == 1
        self.peer.heard.clear()
        self.asked += 1
        if self.asked % 8 == 0:
            self.serve()

    def serve(self) -> None:
        """A message goes through the node."""
        self.served += 1
        run = encode_one(b"%d" % self.served)
        self._say(FrameType.SEND, channel=1, first=self.served, count=1, table=run.table, body=run.body)
        self._say(FrameType.SETTLE, channel=2, count=1, table=encode_ranges([(self.served, self.served)]))
        assert [frame.body for frame in self.peer.heard_of(FrameType.DELIVER)] == [b"%d" % self.served]
        assert self.peer.heard_of(FrameType.CONFIRM)[-1].first == self.served
        self.peer.heard.clear()


def play(peer: NodePeer, data: bytes, cut: int) -> str | None:
    """Say all this to the node; returns the entry with which it closed the connection, if it did."""
    for chunk in chunks(data, cut):
        peer.feed(chunk)
    peer.end()
    return peer.refusal


@pytest.mark.slow
@settings(max_examples=200)
@given(plans)
def test_a_node_serves_a_valid_conversation_to_its_end(plan: Plan) -> None:
    node = MemoryNode()
    peer = node.connect()
    for step in plan.render():
        delivered = [frame for frame in peer.heard_of(FrameType.DELIVER) if frame.channel == step.frame.channel]
        assert step.after_tag <= sum(frame.count for frame in delivered)
        peer.say(step)
    assert peer.refusal is None
    peer.end()
    node.wait(100.0)
    assert node.sessions.by_number == {}


@pytest.mark.exhaustive
def test_wrong_frames_get_typed_refusals_from_a_node_that_serves_a_second_connection_throughout() -> None:
    tally = Tally()
    serial = itertools.count(1)

    @settings(max_examples=120)
    @given(plans, st.lists(mutations, min_size=BATCH, max_size=BATCH), st.integers(0, 2**16))
    def examples(plan: Plan, changes: list[Mutation], cut: int) -> None:
        node = MemoryNode()
        companion = Companion(node)
        for mutation in changes:
            note(f"{mutation}")
            number = next(serial)
            example = apply(plan.render(number.to_bytes(16, "big"), f"q{number}-"), mutation)
            tally.count(example, play(node.connect(), b"".join(example.pieces) or b"\0", cut))
            companion.answers()
        companion.serve()
        assert companion.peer.refusal is None
        # Nobody's session, and nothing that was promised to one, outlives it.
        companion.peer.end()
        node.wait(100.0)
        assert node.sessions.by_number == {}
        assert node.core.memory.reserved_bytes == 0

    examples()
    print(tally)
    # 2,800 of them go over sockets, in ``tests/real``.
    assert tally.tried >= 5_000
    assert tally.semantic * 2 >= tally.tried
    assert set(tally.refusals) >= {*BY_FRAMES, "bad_tag"}
