"""A look whether a node is still there whose backup is to end."""

from __future__ import annotations

import trio

from meshq.abc import Env
from meshq.endpoint import Endpoint, told_place
from meshq.errors import ConnectionBrokenError, RefusedError

#: Seconds for which a node may take to answer.
ANSWER_S = 5.0


async def check_gone(env: Env, whose: str, url: str) -> None:
    """Check that no broker answers at the URL of a node.

    Checkpoint: always.
    Cancellation: no connection is open.
    Raises:
        RefusedError: somebody does, or the node has told no place.  One that is cut off looks gone.
    """
    place = told_place(url)
    if not place:
        await trio.lowlevel.checkpoint()
        raise RefusedError(f"{whose} has told no place at which it could be asked: force=True ends its backup")
    if await _answers(env, Endpoint.parse(place)):
        text = f"{whose} answers at {place}, and would ask for a backup again"
        raise RefusedError(f"{text}: stop it first, or force=True ends its backup")


async def _answers(env: Env, endpoint: Endpoint) -> bool:
    if endpoint.scheme == "inproc":
        await trio.lowlevel.checkpoint()
        return endpoint.host in env.local
    with trio.move_on_after(ANSWER_S):
        try:
            (await env.network.connect(endpoint.host, endpoint.port)).close()
        except ConnectionBrokenError:
            return False
        return True
    return False
