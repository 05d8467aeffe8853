"""A look at witnesses: what they keep, and that nothing is changed by it."""

from __future__ import annotations

import attrs
import pytest
import trio

from meshq import ConnectionBrokenError, RefusedError, SecurityError, SettingsError
from meshq.abc import QuorumRecord
from meshq.errors import RemoteProtocolError
from meshq.ha.quorum.mesh import WitnessSight, look, told
from meshq.ha.quorum.mesh._message_format import decode_list, encode_list
from meshq.ha.quorum.mesh._witness_machine import LIST_MAX, Question, VoterState, Witness, name_of
from meshq.settings import Secret
from tests.ha.quorum.ensemble import PASSWORD, Ensemble, ensemble

ID, OTHER = b"\x11" * 16, b"\xff" * 16
SERVERS = ("w0", "w1", "w2")


async def seen_by(world: Ensemble, name: str) -> WitnessSight:
    url = f"tcp://{name}:7700"
    return await look(url, password=Secret(PASSWORD), insecure=True, env=world.env("c9"))


async def test_a_look_shows_what_is_kept_and_changes_nothing() -> None:
    async with ensemble() as world, world.quorum().session(ID, b"\x22" * 16) as session:
        assert await session.acquire()
        assert await session.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1, holder="a"))
        seen = [await seen_by(world, name) for name in world.names]
        assert [name_of(one.name) for one in seen] == list(SERVERS)
        assert [list(one.promises) for one in seen] == [[ID]] * 3
        assert {one.promises[ID].instance for one in seen} == {b"\x22" * 16}
        assert [await seen_by(world, name) for name in world.names] == seen
        # The lock is still held.
        assert await session.compare_and_set(QuorumRecord(epoch=1, holder="a"), QuorumRecord(epoch=2))


async def test_a_look_at_the_wrong_place_says_why() -> None:
    async with ensemble() as world:
        env, password = world.env("c9"), Secret(PASSWORD)
        with pytest.raises(SecurityError):
            await look("tcp://w0:7700", password=Secret("another"), insecure=True, env=env)
        with pytest.raises(RefusedError, match="'other' here and 'meshq' there"):
            await look("tcp://w0:7700", password=password, ensemble="other", insecure=True, env=env)
        with pytest.raises(SettingsError, match="insecure=True"):
            await look("tcp://w0:7700", password=password, env=env)
        with pytest.raises(SettingsError, match="tls://HOST:PORT"):
            await look("inproc://w0", password=password, env=env)
        world.network.partition(["c9"], ["w0"])
        with pytest.raises(ConnectionBrokenError, match="in time"), trio.fail_after(20):
            await look("tcp://w0:7700", password=password, insecure=True, env=env)


def test_node_ids_are_listed_in_order_and_in_pages() -> None:
    witness = Witness("w")
    ids = [number.to_bytes(16, "big") for number in range(LIST_MAX + 2)]
    for node_id in reversed(ids):
        witness.answer(Question(kind="claim", node_id=node_id, instance=ID, ballot=1, servers=("w",)), 0.0)
    # Who only reads leaves no node id behind.
    witness.answer(Question(kind="read", node_id=OTHER), 0.0)
    assert witness.listed(bytes(16)) == ids[:LIST_MAX]
    assert witness.listed(ids[LIST_MAX]) == ids[LIST_MAX:]
    assert witness.listed(OTHER) == []
    assert decode_list(encode_list(7, ids[:LIST_MAX])) == (7, tuple(ids[:LIST_MAX]))
    for wrong in (b"", b"\x90", encode_list(0, [b"short"])):
        with pytest.raises(RemoteProtocolError, match="a list that can't be read"):
            decode_list(wrong)


def test_the_newest_record_is_told_and_whether_it_is_surely_the_last() -> None:
    record = QuorumRecord(epoch=3, sequence=2, claimed=2, in_sync=("a",), holder="a")
    kept = VoterState(ballot=5, instance=OTHER, session_s=18.0, released=False, servers=SERVERS, kept=(5, 2))
    newest = attrs.evolve(kept, record=record)
    older = VoterState(ballot=4, servers=SERVERS, kept=(4, 1))
    assert told([WitnessSight("w1", {ID: older}), WitnessSight("w0", {ID: newest})]) == [
        f"{'11' * 16}: epoch 3, sequence 2, claimed 2, in sync a, holder a",
        "  2 of 3 witnesses (w0, w1, w2)",
        f"  w0: record of ballot 5, number 2; ballot 5 promised, for 18 s to {'ff' * 16}",
        "  w1: record of ballot 4, number 1; ballot 4 promised, given back",
    ]
    assert (
        told([WitnessSight("w1", {ID: older})])[1]
        == "  1 of 3 witnesses (w0, w1, w2): too few, there may be a newer record"
    )
    assert told([WitnessSight("w1", {ID: VoterState(ballot=1)})])[0].endswith("in sync nobody, holder nobody")
    assert told([WitnessSight("w1", {ID: VoterState(ballot=1)})])[1:] == [
        "  belongs to no witnesses yet",
        "  w1: no record; ballot 1 promised, given back",
    ]
    assert told([]) == ["no node id is known"]
