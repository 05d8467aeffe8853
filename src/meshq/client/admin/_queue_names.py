"""The names of the queues of a broker, page by page."""

from __future__ import annotations

from itertools import pairwise

from meshq.client.admin._cluster_queues import Ask
from meshq.wire import violation


async def names_behind(ask: Ask, after: str, operation: str = "queues", **about: str) -> tuple[list[str], bool]:
    """Ask for the names of queues behind ``after`` in the order of their characters; return a page of them, and
    whether there are more.

    ``operation``, ``about``: the call that names them, and what else it takes.

    Checkpoint: always.  Cancellation: nothing has changed.
    Raises:
        RemoteProtocolError: the answer has what is no name, or names in another order, by which asking would not end.
        MeshqError: the broker has refused, or the connection is lost.
    """
    values = await ask(operation, after=after, **about)
    found = [name for key, name in values.items() if key.startswith("queue")]
    if not all(type(name) is str for name in found) or any(one >= two for one, two in pairwise((after, *found))):
        raise violation("bad_header", "an answer about queues with what is no name, or with names in another order")
    return found, bool(values.get("more")) and bool(found)
