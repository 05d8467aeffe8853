"""The queues that a broker's settings name: made at its start, as far as its disk has room for their records.

A disk without room must not keep the broker from serving: only whoever consumes makes some.  So a start places few
records at a time, each asked for as those of any user are, and what has no room then is made while the broker serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from meshq.broker import Core
from meshq.errors import AddressFullError, MeshqError, UsageError
from meshq.store import Journal

#: Queues that are placed before the disk has them: their records fit into what the smallest journal keeps in reserve.
_TOGETHER: Final = 32
#: The record of an address and that of a queue: their fixed parts, and how often they say the name.
_RECORD_BYTES: Final = 512
_NAMES: Final = 4
#: Seconds after which room is asked for again, whatever the disk has said.
_PATIENCE_S: Final = 60


class QueueDeclarer:
    """Makes the queues of a broker's settings."""

    def __init__(
        self, core: Core, journal: Journal | None, names: Sequence[str], warn: Callable[[str, str], None]
    ) -> None:
        self._core = core
        self._journal = journal
        self._names = names
        self._warn = warn
        self._room = trio.Event()

    def room(self) -> None:
        """Try again to create the queues, because the room on the disk has changed."""
        self._room.set()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Make them; the start goes on when all are there, or when there is no room for the next.

        Checkpoint: always.
        Cancellation: those that were made stay.
        Raises:
            UsageError: a queue can't be made beside what is there already.
            ClosedError, JournalBrokenError: the journal takes no more.
        """
        serving = False
        for index, name in enumerate(self._names):
            while (error := await self._make(name)) is not None:
                if serving and isinstance(error, UsageError):
                    # A queue of that name was created with other settings meanwhile; it stays.
                    self._warn("queues_wait", f"the queue {name!r} of the settings can't be made any more: {error}")
                    break
                if not isinstance(error, AddressFullError):
                    raise error
                if not serving:
                    count = sum(one not in self._core.router.queues for one in self._names[index:])
                    text = f"the disk has no room for {count} queues of the settings: they are made when it has some"
                    self._warn("queues_wait", text)
                    serving = True
                    task_status.started()
                with trio.move_on_after(_PATIENCE_S):
                    await self._room.wait()
                self._room = trio.Event()
            if self._journal is not None and index % _TOGETHER == _TOGETHER - 1:
                await self._journal.wait_durable(self._journal.last)
        if not serving:
            task_status.started()

    async def _make(self, name: str) -> MeshqError | None:
        """Make a queue unless it is there; returns why it can't be made."""
        core = self._core
        answer: list[MeshqError | None] = []
        asked = trio.Event()

        def attempt() -> None:
            # The journal may be the caller: it gets no error of ours.
            try:
                if name not in core.router.queues:
                    core.definitions.create_queue(name, address=None, routing="anycast", durable=True)
                answer.append(None)
            except MeshqError as error:
                answer.append(error)
            asked.set()

        if core.release_queue.request_space(_RECORD_BYTES + _NAMES * len(name.encode()), attempt):
            attempt()
        await asked.wait()
        return answer[0]
