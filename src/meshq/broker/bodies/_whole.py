"""Reading a large body as a whole; the body is at most as large as an ordinary message may be."""

from __future__ import annotations

from functools import partial

from meshq import limits
from meshq.broker.bodies._bodies import Bodies, Got
from meshq.broker.bodies._body import Body
from meshq.errors import MeshqError, invariant


def read_whole(bodies: Bodies, body: Body, then: Got) -> None:
    """Read all blocks of a body that is no larger than an ordinary message's; outcomes as ``Bodies.read``."""
    invariant(body.size_bytes <= limits.MESSAGE_BYTES_MAX, "only what is bounded is read as a whole")
    blocks: list[bytes] = []
    count = -(-body.size_bytes // limits.LARGE_BLOCK_BYTES)
    failed = False

    def got(number: int, found: bytes | MeshqError) -> None:
        # They come in the order in which they were asked for.
        nonlocal failed
        if failed:
            return
        if isinstance(found, MeshqError):
            failed = True
            then(found)
            return
        blocks.append(found)
        if number + 1 == count:
            then(b"".join(blocks))

    for number in range(count):
        bodies.read(body, number, partial(got, number))
