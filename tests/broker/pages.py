"""Whoever has the disk for the pager of a core on a fake log: one hop at a time, as the node's task does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from meshq.broker import StoredRun, run_contents
from meshq.wire import RunBytes
from tests.broker.hosts import FakePageRequests
from tests.broker.kit import House


@attrs.define(eq=False)
class FakePages:
    """Reads and writes pages when it is told to go on; between two hops anything may happen.

    Page files are a dict; ``written`` is that of this life.
    """

    house: House
    written: dict[int, RunBytes] = attrs.field(factory=dict)
    pages: int = 0
    #: Runs that were read back and written so far.
    reads: int = 0
    spills: int = 0
    #: Something is to be done, or being done.
    busy: bool = True
    _work: Iterator[None] | None = None

    def __attrs_post_init__(self) -> None:
        requests = self.house.core.settings.page_requests
        assert isinstance(requests, FakePageRequests)
        requests.pages = self
        self.house.core.pager.spills = True

    def wake(self) -> None:
        self.busy = True

    def press(self) -> None:
        """Whatever can go is to go, though nothing came."""
        for room in self.house.core.router.quotas.values():
            room.pressed = room.limited
        self.busy = True

    def forget(self, page: Any) -> None:
        del self.written[page]

    def rest(self) -> None:
        """Go on until nothing is left to do."""
        while self.busy:
            self.hop()
            self.house.rest()

    def hop(self) -> None:
        """Go on to the next call of the disk."""
        if self._work is None:
            self.busy = False
            self._work = self._page()
        if next(self._work, self) is self:
            self._work = None
        else:
            self.busy = True

    def content(self, run: StoredRun) -> RunBytes:
        """The content of a run, wherever it is; nothing is changed by this look."""
        if not run.paged:
            return run.content
        if run.spill is not None:
            return self.written[run.spill]
        position = (run.origin or run).position
        return run_contents([run], self.house.log.read([position]))[run]

    def _page(self) -> Iterator[None]:
        pager = self.house.core.pager
        if not pager.relieve():
            # What was placed just now can be paged as soon as it is durable.
            self.house.rest()
            pager.relieve()
        while going := pager.next_spills():
            yield
            self.spills += len(going)
            pages = range(self.pages, self.pages + len(going))
            self.pages += len(going)
            self.written |= dict(zip(pages, (content for _, content in going), strict=True))
            yield
            pager.spilled({run: page for (run, _), page in zip(going, pages, strict=True)})
        self.house.core.pending.run()
        while runs := pager.next_reads():
            yield
            self.reads += len(runs)
            found = self._read(runs)
            yield
            pager.arrived(found)
            self.house.core.pending.run()
            pager.relieve()
        self.house.core.pending.run()

    def _read(self, runs: list[StoredRun]) -> dict[StoredRun, RunBytes]:
        positions = [(run.origin or run).position for run in runs if run.spill is None and run.paged]
        records = self.house.log.read(positions)
        spilled = {run: self.written[run.spill] for run in runs if run.spill is not None}
        return spilled | run_contents([run for run in runs if run.spill is None], records)
