"""Reads the promises and records of a witness, without a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from meshq.abc import Env
from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError, RemoteProtocolError, SettingsError
from meshq.ha.quorum.mesh._channel import Channel
from meshq.ha.quorum.mesh._dial import DialSettings, dialed
from meshq.ha.quorum.mesh._message_format import decode_list, decode_reply, encode_question
from meshq.ha.quorum.mesh._witness_machine import Question, VoterState
from meshq.ids import IDENTITY_BYTES
from meshq.settings import Secret

_FIRST: Final = bytes(IDENTITY_BYTES)
_TIMEOUT_S: Final = 8.0


@attrs.frozen
class WitnessSight:
    """The name of a witness with its journal, and its promises by node id."""

    name: str
    promises: Mapping[bytes, VoterState]


async def look(
    url: str,
    *,
    password: Secret,
    user: str = "quorum",
    ensemble: str = "meshq",
    tls: object = None,
    insecure: bool = False,
    env: Env,
) -> WitnessSight:
    """Ask a witness for all that it keeps.

    Checkpoint: always.
    Cancellation: the connection is closed; the witness is unchanged.
    Raises:
        SettingsError: the URL is not that of a witness, or would carry what is secret in plaintext to another machine.
        ConnectionBrokenError: the witness can't be reached, or does not answer in time.
        RefusedError, SecurityError, RemoteProtocolError: as a session is refused.
    """
    endpoint = Endpoint.parse(url)
    if endpoint.scheme not in ("tcp", "tls"):
        raise SettingsError("url", url, "tcp://HOST:PORT or tls://HOST:PORT")
    if endpoint.scheme == "tcp" and not endpoint.loopback and not insecure:
        raise SettingsError("url", url, "a loopback host, or insecure=True, or tls://")
    settings = DialSettings(ensemble=ensemble, user=user, password=password, tls=tls, connection_timeout_s=_TIMEOUT_S)
    async with dialed(endpoint, settings, env) as (channel, facts):
        with trio.move_on_after(_TIMEOUT_S) as scope:
            promises = await _promises(channel)
        if scope.cancelled_caught:
            late = ConnectionBrokenError(f"{endpoint} does not answer in time", outcome="not_done")
            raise late from TimeoutError(f"waited {_TIMEOUT_S:g} s for an answer")
        return WitnessSight(facts.member, promises)


async def _promises(channel: Channel) -> dict[bytes, VoterState]:
    found: dict[bytes, VoterState] = {}
    first = _FIRST
    while True:
        await channel.send(encode_question(0, Question(kind="list", node_id=first, instance=_FIRST)))
        _, node_ids = decode_list(await channel.receive())
        if not node_ids:
            return found
        if node_ids[0] < first or list(node_ids) != sorted(set(node_ids)):
            raise RemoteProtocolError("a list of node ids is not in order")
        for node_id in node_ids:
            await channel.send(encode_question(0, Question(kind="read", node_id=node_id, instance=_FIRST)))
            found[node_id] = decode_reply(await channel.receive())[1].promise
        if int.from_bytes(node_ids[-1], "big") + 1 >> 8 * IDENTITY_BYTES:
            return found
        first = (int.from_bytes(node_ids[-1], "big") + 1).to_bytes(IDENTITY_BYTES, "big")


def told(seen: Sequence[WitnessSight]) -> list[str]:
    """Return lines of text: the newest record of each node id, and the promise and record of each witness.

    A record is only sure to be the last one when more than half of the witnesses of the node id were asked.
    """
    lines: list[str] = []
    for node_id in sorted({node_id for one in seen for node_id in one.promises}):
        there = sorted(
            ((one.name, one.promises[node_id]) for one in seen if node_id in one.promises), key=lambda pair: pair[0]
        )
        newest = max((promise for _, promise in there), key=lambda promise: promise.kept)
        record, servers = newest.record, newest.servers
        in_sync = ", ".join(record.in_sync) or "nobody"
        lines.append(
            f"{node_id.hex()}: epoch {record.epoch}, sequence {record.sequence}, claimed {record.claimed}, "
            f"in sync {in_sync}, holder {record.holder or 'nobody'}"
        )
        lines.append(f"  {_asked(len({one.name for one in seen} & set(servers)), servers)}")
        lines += [f"  {name}: {_of_witness(promise)}" for name, promise in there]
    return lines or ["no node id is known"]


def _asked(count: int, servers: Sequence[str]) -> str:
    if not servers:
        return "belongs to no witnesses yet"
    text = f"{count} of {len(servers)} witnesses ({', '.join(servers)})"
    return text if 2 * count > len(servers) else f"{text}: too few, there may be a newer record"


def _of_witness(promise: VoterState) -> str:
    kept = f"record of ballot {promise.kept[0]}, number {promise.kept[1]}" if promise.kept != (0, 0) else "no record"
    whom = "given back" if promise.released else f"for {promise.session_s:g} s to {promise.instance.hex()}"
    return f"{kept}; ballot {promise.ballot} promised, {whom}"
