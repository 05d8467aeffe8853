"""Seeded bugs of cursors: of their leases, places, pins and ranges."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

CURSOR_BUGS: Final = (
    Bug(
        name="take messages out of a queue and not write the place of the cursor",
        function="meshq.broker:Cursors.ack",
        old="        self._write(cursor, before)\n",
        new="",
        checkers=("Q14",),
        required=True,
    ),
    Bug(
        name="let an owner that was replaced acknowledge by its cursor",
        function="meshq.broker:CursorMachine.check",
        old="    if fence == facts.fence and facts.token:\n",
        new="    if facts.token:\n",
        checkers=("Q14",),
    ),
    Bug(
        name="let messages expire that a cursor has pinned",
        function="meshq.broker:Expiry._alone",
        old="        rows = [row for row in rows if not cursor.keeps(view.first + row)]\n",
        new="        pass\n",
        checkers=("Q14",),
    ),
    Bug(
        name="give numbers again that a cursor has acknowledged",
        function="meshq.broker:Cursors.ack",
        old="        self._definitions.watermarks.cover_given(queue)\n",
        new="",
        checkers=("Q14", "Q4", "Q5", "Q6", "Q1"),
    ),
    Bug(
        name="purge a queue under its cursor",
        function="meshq.broker:_purged",
        old='    refuse_if_held(queue.roster.cursor, "nothing is purged before its owner")\n',
        new="",
        checkers=("Q14", "Q1"),
    ),
    Bug(
        name="read the range of a cursor by priority",
        function="meshq.broker:RangeBrowser._next",
        old="        if view is not None and (best is None or view.first < best.first):\n",
        new="        if view is not None and best is None:\n",
        checkers=("Q14",),
        required=True,
    ),
    Bug(
        name="forget which numbers under a cursor were not durable",
        function="meshq.broker:HighWatermarks.cover_volatile",
        old="        if hole is not None:\n",
        new="        if hole is not None and position < 0:\n",
        checkers=("Q14",),
    ),
)
