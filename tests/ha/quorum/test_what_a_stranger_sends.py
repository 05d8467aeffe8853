"""A witness lives whatever one connection sends it, with the password or without it."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import trio

from meshq.abc import QuorumRecord
from meshq.errors import MeshqError
from meshq.ha.quorum.mesh._channel import Channel
from meshq.ha.quorum.mesh._handshake import greet_witness
from meshq.ha.quorum.mesh._message_format import decode_reply, encode_question
from meshq.ha.quorum.mesh._witness_machine import BALLOTS_AHEAD, Question, Witness
from meshq.settings import Secret
from tests.ha.quorum.ensemble import PASSWORD, Ensemble, ensemble

ID = b"n" * 16
A, B = b"a" * 16, b"b" * 16


async def connected(world: Ensemble) -> Channel:
    return Channel(await world.env("stranger").network.connect("w0", 7700))


@pytest.mark.parametrize(
    ("user", "nonce", "proof"),
    [
        ("quorum", 32, 0),
        ("quorum", 32, 1),
        ("quorum", 32, 32),
        ("quorum", 32, 5_000),
        ("u" * 60_000, 32, 32),
        ("quorum", 0, 32),
    ],
)
async def test_a_stranger_ends_its_own_connection_and_nothing_else(user: str, nonce: int, proof: int) -> None:
    async with ensemble() as world:
        channel = await connected(world)
        hello: dict[str, Any] = {"version": 1, "ensemble": "meshq", "user": user, "nonce": bytes(nonce)}
        with pytest.raises(MeshqError):
            await channel.send(msgpack.packb(hello))
            await channel.receive()
            await channel.send(bytes(proof))
            assert await channel.receive() == b"", "a wrong proof was taken"
            await channel.receive()
        await trio.sleep(1)
        assert world.nodes["w0"].state == "running"
        async with world.quorum().session(ID, A) as session:
            assert await session.acquire()


async def test_a_record_that_is_too_large_for_its_promise_is_refused_and_changes_nothing() -> None:
    async with ensemble() as world:
        channel = await connected(world)
        token = world.env("x").entropy.token
        await greet_witness(channel, ensemble="meshq", user="quorum", password=Secret(PASSWORD), token=token)

        async def ask(**question: Any) -> Any:
            await channel.send(encode_question(1, Question(node_id=ID, instance=A, **question)))
            return decode_reply(await channel.receive())[1]

        assert (
            await ask(kind="claim", ballot=1, session_s=3.0, servers=(world.nodes["w0"].member, "s" * 40_000))
        ).granted
        with pytest.raises(MeshqError):
            await ask(kind="store", ballot=1, number=1, record=QuorumRecord(holder="h" * 40_000))
        assert world.nodes["w0"].state == "running"
        channel = await connected(world)
        await greet_witness(channel, ensemble="meshq", user="quorum", password=Secret(PASSWORD), token=token)
        assert (await ask(kind="read")).promise.record == QuorumRecord()


def test_two_sessions_that_have_claimed_one_ballot_do_not_renew_or_store_for_each_other() -> None:
    witness = Witness("w0")
    servers = ("w0", "w1", "w2")
    claim = Question(kind="claim", node_id=ID, instance=B, ballot=1, session_s=3.0, servers=servers)
    assert witness.answer(claim, 0.0)[0].granted
    for kind in ("renew", "store", "release"):
        other = Question(kind=kind, node_id=ID, instance=A, ballot=1, number=1)  # type: ignore[arg-type]
        assert not witness.answer(other, 1.0)[1], kind
        if kind != "release":
            assert witness.answer(other, 1.0)[0].reason == "ballot"


def test_who_only_asks_makes_nothing_and_nobody_uses_up_the_ballots() -> None:
    witness = Witness("w")
    for number in range(100):
        assert witness.answer(Question(kind="read", node_id=bytes([number] * 16), instance=A), 0.0)[0].granted
        store = Question(kind="store", node_id=bytes([number] * 16), instance=A, ballot=0, number=1)
        assert witness.answer(store, 0.0)[0].reason == "ballot"
    assert witness.promises == {}
    high = Question(kind="claim", node_id=ID, instance=A, ballot=BALLOTS_AHEAD + 1, session_s=3.0, servers=("w",))
    assert witness.answer(high, 0.0)[0].reason == "ballot"
