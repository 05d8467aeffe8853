"""The format of a quorum of witnesses: the bytes of the page, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import msgpack
import pytest

from meshq import DamagedError, RemoteProtocolError
from meshq.abc import QuorumRecord
from meshq.ha.quorum.mesh._message_format import (
    decode_question,
    decode_reply,
    decode_state,
    encode_question,
    encode_reply,
    encode_state,
)
from meshq.ha.quorum.mesh._witness_machine import Question, Reply, VoterState

RECORD = QuorumRecord(epoch=2, sequence=3, claimed=3, in_sync=("a", "b"), holder="a")
STATE = VoterState(
    ballot=5,
    instance=b"\x22" * 16,
    session_s=18.0,
    released=False,
    servers=("w0", "w1", "w2"),
    kept=(5, 1),
    record=RECORD,
)
NODE_ID = b"\x11" * 16


def test_the_bytes_of_the_page_are_those_of_a_promise() -> None:
    page = (Path(__file__).parents[3] / "docs/formats/quorum.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```\n([0-9a-f \n]+)```", page)
    data = bytes.fromhex(example.replace("\n", " "))
    assert encode_state(NODE_ID, STATE) == data
    assert decode_state(data, "journal", 1) == (NODE_ID, STATE)


def test_questions_and_replies_come_back_as_they_were() -> None:
    question = Question(
        kind="store", node_id=NODE_ID, instance=b"\x22" * 16, ballot=5, servers=("w0",), number=2, record=RECORD
    )
    assert decode_question(encode_question(7, question)) == (7, question)
    reply = Reply(granted=False, reason="held", promise=STATE)
    assert decode_reply(encode_reply(9, reply)) == (9, reply)


def test_what_has_another_shape_is_refused() -> None:
    parts = msgpack.unpackb(encode_state(NODE_ID, STATE))
    for index in range(len(parts)):
        for other in (None, [], "x", -1, b"short", 2**64 - 1 if index == 0 else None):
            wrong = msgpack.packb([*parts[:index], other, *parts[index + 1 :]])
            if wrong == encode_state(NODE_ID, STATE) or (index == 6 and other == []):
                continue
            with pytest.raises(DamagedError, match="what a witness has promised"):
                decode_state(wrong, "journal", 1)
    for data in (b"", b"\xc1", b"\x90", msgpack.packb({}), b"\xdd\xff\xff\xff\xff", encode_state(NODE_ID, STATE)):
        with pytest.raises(RemoteProtocolError):
            decode_question(data)
        with pytest.raises(RemoteProtocolError):
            decode_reply(data)
