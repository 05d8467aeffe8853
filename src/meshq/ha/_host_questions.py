"""Questions to other hosts, by which a node finds out that it is cut off from the network."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from meshq.abc import Network
from meshq.errors import ConnectionBrokenError
from meshq.ha._hosts_plan import place_of


async def any_answers(network: Network, hosts: Sequence[str], timeout_s: float) -> bool:
    """Whether one of the hosts answers in time; a refused connection is an answer.

    Checkpoint: always.
    Cancellation: no connection is open.
    """
    answered = False

    async def ask(host: str, port: int) -> None:
        nonlocal answered
        try:
            (await network.connect(host, port)).close()
        except ConnectionBrokenError as error:
            if not _is_refused(error):
                return
        answered = True
        nursery.cancel_scope.cancel()

    with trio.move_on_after(timeout_s):
        async with trio.open_nursery() as nursery:
            for host in hosts:
                nursery.start_soon(ask, *place_of(host))
    return answered


def _is_refused(error: BaseException | None) -> bool:
    """Whether one of the addresses that were tried has refused the connection."""
    if error is None or isinstance(error, ConnectionRefusedError):
        return error is not None
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else (error.__cause__,)
    return any(_is_refused(one) for one in inner)
