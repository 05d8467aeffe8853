"""Prefetch of large bodies: a consumer's runs wait here, in order, until their bodies are fetched.

A body that an ordinary message could have is fetched whole, so that whoever receives sees no difference; it counts in
the window of the consumer.  A larger one is not: its message is handed over without, and its holder reads it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Protocol

from meshq import limits
from meshq.client.incoming._body_reads import BodyReads, Reader
from meshq.client.incoming._delivered_run import DeliveredRun
from meshq.errors import MeshqError, StaleDeliveryError
from meshq.wire import RunView, with_body


class PrefetchOwner(Reader, Protocol):
    """The inbox whose runs wait for their bodies."""

    @property
    def browse(self) -> bool:
        """Whether its consumer only looks."""

    def arrived(self, run: DeliveredRun) -> None:
        """Add a run that can be received."""

    def skip(self, run: DeliveredRun) -> None:
        """Settle a run of one message that is no longer in the queue, without handing it over."""


class _Fetch:
    """A waiting run, and the blocks of its body that have come."""

    __slots__ = ("asked", "blocks", "count", "run")

    def __init__(self, run: DeliveredRun) -> None:
        self.run = run
        size = run.large.size if run.large is not None else 0
        # Blocks of the body; how many were asked for, and those that have come.
        self.count = -(-size // limits.LARGE_BLOCK_BYTES) if size <= limits.MESSAGE_BYTES_MAX else 0
        self.asked = 0
        self.blocks: dict[int, bytes] = {}

    @property
    def complete(self) -> bool:
        """Whether it can be handed over."""
        return len(self.blocks) == self.count


class BodyPrefetch:
    """The runs of one consumer that wait for large bodies; made with the first large body."""

    __slots__ = ("_line", "_out", "_owner", "_reads")

    def __init__(self, owner: PrefetchOwner, reads: BodyReads) -> None:
        self._owner = owner
        self._reads = reads
        self._line: deque[_Fetch] = deque()
        # Blocks that were asked for and have not come.
        self._out = 0

    def __len__(self) -> int:
        return len(self._line)

    def add(self, run: DeliveredRun) -> None:
        """Take a DELIVER frame."""
        self._line.append(_Fetch(run))
        self._pump()

    def forget(self) -> None:
        """Drop all waiting runs."""
        self._line.clear()
        self._out = 0

    def _pump(self) -> None:
        line = self._line
        while line and line[0].complete:
            fetch = line.popleft()
            if fetch.count and fetch.run.large is not None:
                body = b"".join(fetch.blocks[number] for number in range(fetch.count))
                fetch.run.view = RunView(with_body(fetch.run.view.run, body))
                fetch.run.large.fetched = True
            self._owner.arrived(fetch.run)
        for fetch in line:
            while fetch.asked < fetch.count and self._out < limits.LARGE_WINDOW_BLOCKS:
                self._out += 1
                fetch.asked += 1
                got = partial(self._got, fetch, fetch.asked - 1)
                self._reads.ask(self._owner, fetch.run.first, fetch.asked - 1, got)
            if self._out == limits.LARGE_WINDOW_BLOCKS:
                return

    def _got(self, fetch: _Fetch, number: int, found: bytes | MeshqError) -> None:
        large = fetch.run.large
        if fetch not in self._line or large is None or large.trouble is not None:
            # The consumer or its session is gone, or was made anew: the message comes again.
            return
        if isinstance(found, StaleDeliveryError):
            if self._owner.browse:
                # Another consumer has taken the message that this browse shows.
                self._line.remove(fetch)
                self._out -= fetch.asked - len(fetch.blocks)
                self._owner.skip(fetch.run)
                self._pump()
            return
        if isinstance(found, MeshqError):
            # The message is handed over all the same: only its consumer can settle it.
            self._out -= fetch.asked - len(fetch.blocks)
            large.trouble, fetch.count = found, 0
            fetch.blocks.clear()
        else:
            self._out -= 1
            fetch.blocks[number] = found
        self._pump()
