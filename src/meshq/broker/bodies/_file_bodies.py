"""Large bodies in files: a task for each body that has something to do, and one thread hop for all that waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import trio

from meshq.abc import Threads
from meshq.broker.bodies._bodies import Bodies, Done, Got
from meshq.broker.bodies._body import Body
from meshq.errors import (
    AddressFullError,
    DamagedError,
    JournalBrokenError,
    MeshqError,
    SettingsError,
    StaleDeliveryError,
    caused,
)
from meshq.logs import logger
from meshq.store import LargeBodyFiles, LargeBodyWriter, is_disk_full
from meshq.wire import decline

POOL: Final = "large"
_log = logger("broker")


class _Block(NamedTuple):
    """A block to be written."""

    data: bytes
    then: Done
    last: bool
    durable: bool


class _BodyRead(NamedTuple):
    number: int
    then: Got


class _Removal(NamedTuple):
    """The removal of all files of a body."""


class _Serving(NamedTuple):
    """A nursery for the work on bodies, and the functions for its results."""

    nursery: trio.Nursery
    run_pending: Callable[[], None]
    failed: Callable[[MeshqError], None]


_Task = _Block | _BodyRead | _Removal


class FileBodies(Bodies):
    """Large bodies of a node that has a store.

    ``uploads_max``: the most bodies that come in at a time; each has an open file.
    """

    in_memory = False

    def __init__(
        self, token: Callable[[int], bytes], files: LargeBodyFiles, threads: Threads, *, uploads_max: int = 4_096
    ) -> None:
        super().__init__(token)
        self._uploads_max = uploads_max
        self._files = files
        self._threads = threads
        self._tasks: dict[Body, deque[_Task]] = {}
        # Bodies that are coming in, and those that have failed to.
        self._writers: dict[Body, LargeBodyWriter] = {}
        self._refused: dict[Body, MeshqError] = {}
        self._serving: _Serving | None = None

    # -- what is asked for

    def write(self, body: Body, block: bytes, then: Done, *, durable: bool) -> None:
        """In its turn."""
        self._add(body, _Block(block, then, last=False, durable=durable))

    def finish(self, body: Body, block: bytes, then: Done, *, durable: bool) -> None:
        """In its turn."""
        self._add(body, _Block(block, then, last=True, durable=durable))

    def read(self, body: Body, number: int, then: Got) -> None:
        """In its turn."""
        self._add(body, _BodyRead(number, then))

    def abandon(self, body: Body) -> None:
        """In its turn."""
        self._add(body, _Removal())

    def remove(self, body: Body) -> None:
        """Remove a body after the reads that were asked for earlier."""
        self._add(body, _Removal())

    def _add(self, body: Body, task: _Task) -> None:
        tasks = self._tasks.get(body)
        if tasks is not None:
            tasks.append(task)
            return
        self._tasks[body] = deque((task,))
        if self._serving is not None:
            self._serving.nursery.start_soon(self._work, self._serving, body)

    # -- how it is done

    async def open(self, living: Mapping[bytes, int]) -> int:
        """Check that the ``living`` bodies exist, and remove all others.

        Checkpoint: always.  Cancellation: some of the others may be removed.
        Raises:
            DamagedError: a body is missing or damaged.
            SettingsError: a body is encrypted with a key that is not given.
            JournalBrokenError: the disk failed.
        """
        try:
            await self._threads.run(self._files.prepare, pool=POOL)
            return await self._threads.run(self._files.sweep, living, pool=POOL)
        except OSError as error:
            text = f"the bodies of large messages can't be looked at: {error}"
            raise JournalBrokenError(text, outcome="not_done") from error

    async def run(
        self,
        run_pending: Callable[[], None],
        failed: Callable[[MeshqError], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Do the work for all bodies, until cancelled.

        ``run_pending`` is called after each answer.  ``failed`` is called when the disk has failed: nothing durable
        may be promised any more.

        Checkpoint: always.
        Cancellation: waits for the calls under way; bodies that were coming in stay on disk for the next start.
        """
        try:
            async with trio.open_nursery() as nursery:
                serving = self._serving = _Serving(nursery, run_pending, failed)
                for body in self._tasks:
                    nursery.start_soon(self._work, serving, body)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._serving = None
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()

    async def _work(self, serving: _Serving, body: Body) -> None:
        """Do the waiting work for one body, until there is none."""
        tasks = self._tasks[body]
        while tasks:
            if isinstance(tasks[0], _Block):
                await self._write(serving, body, tasks)
            else:
                task = tasks.popleft()
                if isinstance(task, _BodyRead):
                    await self._read(body, task)
                else:
                    await self._remove(body)
            serving.run_pending()
        del self._tasks[body]

    async def _write(self, serving: _Serving, body: Body, tasks: deque[_Task]) -> None:
        """Write all blocks that wait, in one hop."""
        blocks: list[_Block] = []
        while tasks and isinstance(tasks[0], _Block):
            blocks.append(tasks.popleft())  # type: ignore[arg-type]
        error = self._refused.get(body)
        if error is None and body not in self._writers and len(self._writers) >= self._uploads_max:
            text = f"{self._uploads_max} large bodies are coming in, and each has a file"
            error = self._refused[body] = AddressFullError(text)
        if error is None:
            try:
                await self._threads.run(self._write_blocks, body, blocks, pool=POOL)
            except OSError as failure:
                error = self._refused[body] = _explained(serving, failure)
        for block in blocks:
            block.then(error)

    def _write_blocks(self, body: Body, blocks: list[_Block]) -> None:
        writer = self._writers.get(body)
        if writer is None:
            # Kept here and not returned: the result of a cancelled call is lost.
            writer = self._writers[body] = self._files.create(body.body_id)
        last = blocks[-1]
        writer.write([block.data for block in blocks], last=last.last, durable=last.durable)
        if last.last:
            writer.finish(durable=last.durable)
            del self._writers[body]

    async def _read(self, body: Body, task: _BodyRead) -> None:
        found: bytes | MeshqError
        try:
            found = await self._threads.run(self._files.read, body.body_id, body.size_bytes, task.number, pool=POOL)
        except FileNotFoundError as error:
            found = caused(StaleDeliveryError("the message is gone"), error)
        except (OSError, DamagedError, SettingsError) as error:
            _log.warning("the body of a large message can't be read: %s", error, extra={"event": "body_unreadable"})
            found = caused(decline("unreadable", _told(error)), error)
        task.then(found)

    async def _remove(self, body: Body) -> None:
        writer = self._writers.pop(body, None)
        self._refused.pop(body, None)
        work = writer.abandon if writer is not None else partial(self._files.remove, body.body_id)
        # Nothing of it may have come; and the next start sweeps what could not be removed now.
        with suppress(OSError):
            await self._threads.run(work, pool=POOL)


def _explained(serving: _Serving, failure: OSError) -> MeshqError:
    """Why a body could not be taken; unless the disk is only full, it is of no use any more."""
    if is_disk_full(failure):
        return caused(AddressFullError(f"there is no room for the body: {failure}"), failure)
    text = f"the body of a large message can't be written: {failure}"
    error = caused(JournalBrokenError(text, outcome="not_done"), failure)
    serving.failed(error)
    return error


def _told(error: OSError | DamagedError | SettingsError) -> str:
    """Return the error for a client: it names the reason, and no file of this machine."""
    if isinstance(error, DamagedError):
        return f"its file is damaged at offset {error.offset}: expected {error.expected}, found {error.found}"
    if isinstance(error, OSError):
        return f"its file can't be read: {error.strerror or type(error).__name__}"
    return "its file is encrypted with a key that the broker does not have"
