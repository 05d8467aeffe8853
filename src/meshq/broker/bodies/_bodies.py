"""Large bodies, in memory or in files: the calls that the core makes.

Writing and reading take time, and the core never waits: each call takes a function that is called with the outcome.
The calls for one body are done in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from meshq import limits
from meshq.broker.bodies._body import Body
from meshq.errors import MeshqError, StaleDeliveryError, invariant

#: Told when something is done, or of the error.
Done = Callable[[MeshqError | None], None]
#: Told what was read, or the error.
Got = Callable[[bytes | MeshqError], None]


class Bodies(ABC):
    """Where the large bodies of a node are."""

    #: Bytes of the bodies are bytes of memory.
    in_memory: bool

    def __init__(self, token: Callable[[int], bytes]) -> None:
        self._token = token

    def begin(self) -> Body:
        """A body that is to come in."""
        return Body(self._token(16))

    @abstractmethod
    def write(self, body: Body, block: bytes, then: Done, *, durable: bool) -> None:
        """Take the next block; all but the last are whole blocks.  ``durable``: the body is to survive a crash.

        Outcomes: AddressFullError: there is no room.  JournalBrokenError: the disk has failed.
        """

    @abstractmethod
    def finish(self, body: Body, block: bytes, then: Done, *, durable: bool) -> None:
        """Take the last block; when that is done the body is whole, and survives a crash if it is to.

        Outcomes: as ``write``.
        """

    @abstractmethod
    def read(self, body: Body, number: int, then: Got) -> None:
        """Read a block of a whole body.

        Outcomes: StaleDeliveryError: it is gone.  RefusedError: it can't be read, and why.
        """

    @abstractmethod
    def abandon(self, body: Body) -> None:
        """Drop a body that did not come in whole."""

    @abstractmethod
    def remove(self, body: Body) -> None:
        """Remove a whole body; it is durable that no message refers to the body."""


class MemoryBodies(Bodies):
    """Large bodies of a node that has no store."""

    in_memory = True

    def __init__(self, token: Callable[[int], bytes], released: Callable[[int], None]) -> None:
        super().__init__(token)
        self._released = released
        self._blocks: dict[Body, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def write(self, body: Body, block: bytes, then: Done, *, durable: bool) -> None:
        """Keep the block in memory."""
        self._blocks.setdefault(body, []).append(block)
        then(None)

    def finish(self, body: Body, block: bytes, then: Done, *, durable: bool) -> None:
        """Keep the block in memory."""
        self.write(body, block, then, durable=durable)

    def read(self, body: Body, number: int, then: Got) -> None:
        """At once."""
        blocks = self._blocks.get(body)
        then(StaleDeliveryError("the message is gone") if blocks is None else blocks[number])

    def abandon(self, body: Body) -> None:
        """Its memory is free."""
        self._released(sum(map(len, self._blocks.pop(body, []))))

    def remove(self, body: Body) -> None:
        """Its memory is free."""
        invariant(not body.refs, "a body goes when nobody needs it")
        self.abandon(body)


assert limits.LARGE_BLOCK_BYTES <= limits.BODY_BYTES_MAX, "a block that is read goes out in one frame"
