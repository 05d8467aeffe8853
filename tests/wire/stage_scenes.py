"""The refusal of a batch while the one before it is still being placed."""

from __future__ import annotations

import struct

from meshq.wire import Call, FrameType, Transact, encode_run
from tests.wire._frames_strategy import Step
from tests.wire._node_peer import MemoryNode, NodePeer
from tests.wire.cursor_scenes import attached, said


def called(operation: str, number: int, **arguments: object) -> Step:
    flat = tuple(item for pair in arguments.items() for item in pair)
    return said(FrameType.CALL, Call(operation=operation, arguments=flat), number=number, first=number)


def batch_placing() -> NodePeer:
    """The second of two messages of batch 0 waits for room at its address, when batch 1 is to be committed."""
    peer = attached(MemoryNode())
    name = {"sink": "s", "batch": 0, "partition": 0, "attempt": 0, "timeout_ms": 1_000}
    run = encode_run([b"x"])
    peer.say(
        called("set_address_settings", 1, pattern="a", full_policy="block", max_size_messages=1),
        called("create_queue", 2, name="a"),
        called("open_stage", 3, transaction=1, **name),
    )
    for sent in (0, 1):
        header = Transact(transaction=1, address="a", producer=bytes(16), number=sent + 1, sent=sent)
        fields = {"count": 1, "table": run.table, "body": run.body, "number": 4 + sent, "first": 4 + sent}
        peer.say(said(FrameType.TRANSACT, header, **fields))
    # The queue of the address is the first one of the node, and the stage the next.
    peer.say(
        called("prepare_stage", 6, transaction=1, sent=2, acked=0),
        called("commit_batch", 7, sink="s", batch=0, stages=struct.pack("<I", 2)),
        called("commit_batch", 8, sink="s", batch=1, stages=b""),
    )
    return peer
