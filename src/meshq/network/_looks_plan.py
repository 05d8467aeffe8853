"""The state of a link's search for queues that no link needs any more."""

from __future__ import annotations

from typing import Final

import attrs

#: Queues that went are remembered up to this number: as many as a look reads.
GONE_MAX: Final = 10_000


@attrs.define(eq=False)
class Looks:
    """The state of a search for queues that no link needs."""

    #: The id of the target whose queues were looked through.
    of: str = ""
    #: That is being done.
    going_on: bool = False
    #: How often it was done since the link is up, and how often in a row no other queue went after it.
    number: int = 0
    vain: int = 0
    #: Queues were left for the next look.
    left_out: bool = False
    #: The queues that went since the link is up, as many as are read at a time: a dict as an ordered set.
    gone: dict[str, None] = attrs.Factory(dict)

    def begin_anew(self) -> None:
        """Look again, and at once: the link is another one."""
        self.of, self.number, self.vain = "", 0, 0
        self.gone.clear()

    def went(self, queue: str) -> None:
        """Note that a queue went: the next look is worth its while.  A broker may name it again, or others for ever."""
        if queue not in self.gone and len(self.gone) < GONE_MAX:
            self.gone[queue] = None
            self.vain = 0
