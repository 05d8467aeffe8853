"""A question to another node of a pair: whether it serves, waits, or is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from meshq.errors import MeshqError
from meshq.ha.replication._reach import Reach
from meshq.ha.replication.meeting._standpoints import is_stranger
from meshq.wire import Log, Replicate

#: Refusals by a node without a policy of replication, and by this one, which has reached itself.
STRANGERS: Final = ("role_not_served", "same_node")
#: Seconds for the first try, in which a login over a slow way has room; each later one has twice as many, up to half of
#: what is left.
QUESTION_S = 3.0
#: Seconds between two tries, where the node lives and has no answer yet: the first ones, and the most.
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0


@attrs.frozen(kw_only=True)
class Answer:
    """An answer.

    ``log``: what the node says; None: nothing.  ``lives``: it has taken a connection, and has ended it, or refused to
    say.  ``gone``: nobody listens there.  None of the three: it is silent.  ``refusal``: why it has refused.
    """

    log: Log | None = None
    lives: bool = False
    gone: bool = False
    refusal: str = ""


class Asker:
    """Asks, for one node.  ``wanted``: makes the question; with the life of a replica that is given up."""

    def __init__(self, reach: Reach, instance: bytes, wanted: Callable[[bytes], Replicate]) -> None:
        self._reach = reach
        self._instance = instance
        self._wanted = wanted

    async def ask(
        self, url: str, *, ends: bytes = b"", patience_s: float = 0.0, name: str = "", node_id: bytes = b""
    ) -> Answer:
        """Ask once; again for so many seconds by the clock, while the node is silent, or refuses to say.

        ``ends``: the life of a replica, which is to take over no more.  ``name``: only a node of this name counts, or
        one with this ``node_id``; another one may have its place meanwhile, which says nothing.

        Checkpoint: always.
        Cancellation: the question is dropped.
        """
        until, try_s, pause_s = trio.current_time() + patience_s, QUESTION_S, PAUSE_S
        while True:
            left = until - trio.current_time()
            found = await self._once(url, ends, max(QUESTION_S, min(try_s, left / 2)))
            log = found.log
            if log is not None and name and log.name != name and not (node_id and log.node_id == node_id):
                found = Answer()
            if found.log is not None or found.gone or trio.current_time() >= until:
                return found
            await trio.sleep(pause_s)
            try_s, pause_s = 2 * try_s, min(2 * pause_s, PAUSE_S_MAX)

    async def finds_stranger(self, url: str) -> bool:
        """Ask once; return whether an answer shows that no other node of the pair is there.

        Checkpoint: always.
        Cancellation: the question is dropped.
        """
        answer = await self.ask(url)
        known = answer.log is not None and is_stranger(answer.log, self._wanted(b""))
        return known or answer.refusal in STRANGERS

    async def _once(self, url: str, ends: bytes, seconds: float) -> Answer:
        """Ask once."""
        with trio.move_on_after(seconds):
            try:
                link = self._reach.factory(url).log_link(self._wanted(ends), instance=self._instance)
                try:
                    async with link.connected():
                        return Answer(log=(await link.receive()).header, lives=True)
                except MeshqError as error:
                    silent = isinstance(error.__cause__, TimeoutError)
                    lives = not silent and not link.nobody
                    return Answer(gone=link.nobody, lives=lives, refusal=error.refusal or "")
            except MeshqError as error:
                return Answer(lives=True, refusal=error.refusal or "")
        return Answer()
