"""Seeded bugs that show only where two features meet on one queue, hunted where features meet (``qa.pairs``)."""

from __future__ import annotations

from functools import partial
from typing import Final

from qa.seeded.bug import Bug

_Bug: Final = partial(Bug, mesh=True, stage="pairs")
MEETING_BUGS: Final = (
    _Bug(
        name="delete an unused queue with the messages that wait before they are delivered again",
        function="meshq.broker:Core._can_auto_delete",
        old="        or queue.counts.delayed\n",
        new="",
        checkers=("P5",),
    ),
    _Bug(
        name="let expire what a cursor has pinned",
        function="meshq.broker:Expiry._alone",
        old="if cursor is not None:\n",
        new="if cursor is not None and not cursor.held:\n",
        checkers=("P10", "P4"),
    ),
    _Bug(
        name="ask for the permission to send only with the first message of a transaction",
        function="meshq.broker:SessionTransactions.transact",
        old="        if not staged:\n",
        new="        if not staged and header.transaction not in self._open:\n",
        checkers=("P9", "P3"),
    ),
    _Bug(
        name="count no message among those that were purged that was not due",
        function="meshq.broker:Acknowledger.purge",
        old="    removed = self._purge_scheduled(queue)\n",
        new="    removed = 0 * self._purge_scheduled(queue)\n",
        checkers=("P5",),
    ),
)
