"""A question to another node of a pair: whether it serves, waits, or is gone."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from meshq.errors import ConnectionBrokenError, MeshqError
from meshq.ha.replication._reach import Reach
from meshq.wire import Log, Replicate

#: Seconds for one try.
QUESTION_S = 0.5
#: Seconds between two tries, where the node lives and has no answer yet.
PAUSE_S = 0.05


@attrs.frozen(kw_only=True)
class Answer:
    """An answer.

    ``log``: what the node says; None: nothing.  ``lives``: it is there.
    """

    log: Log | None = None
    lives: bool = False


class Asker:
    """Asks, for one node.  ``wanted``: makes the question; with the word whether a replica is given up."""

    def __init__(self, reach: Reach, instance: bytes, wanted: Callable[[bool], Replicate]) -> None:
        self._reach = reach
        self._instance = instance
        self._wanted = wanted

    async def ask(self, url: str, *, ends: bool = False, patience_s: float = 0.0) -> Answer:
        """Ask once; again for so many seconds, while the node is silent, or refuses to say.

        Checkpoint: always.
        Cancellation: the question is dropped.
        """
        until = trio.current_time() + patience_s
        while True:
            found = await self._once(url, ends)
            over = trio.current_time() >= until
            if found is not None and (over or found.log is not None or not found.lives):
                return found
            if over:
                return Answer()
            await trio.sleep(PAUSE_S)

    async def _once(self, url: str, ends: bool) -> Answer | None:
        """Ask once; None: nothing was heard."""
        with trio.move_on_after(QUESTION_S):
            try:
                link = self._reach.factory(url).log_link(self._wanted(ends), instance=self._instance)
                async with link.connected():
                    return Answer(log=(await link.receive()).header, lives=True)
            except ConnectionBrokenError:
                return Answer()
            except MeshqError:
                return Answer(lives=True)
        return None
