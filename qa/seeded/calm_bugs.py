"""Seeded bugs that show without a crash: times, priorities, groups, windows, memory."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

CALM_BUGS: Final = (
    Bug(
        name="forget what is not durable after its confirm",
        function="meshq.broker:ReleaseQueue.release_after",
        old="position <= log.durable):\n        if views:\n",
        new="position <= log.durable):\n        if views and (views[0][1].run.position or views[0][1].first % 3):\n",
        checkers=("L1",),
    ),
    Bug(
        name="miss an earlier expiry of the same run",
        function="meshq.broker:Expiry._arm",
        old="    if not view.watched or due_ms < view.watched:\n",
        new="    if not view.watched:\n",
        checkers=("L2",),
    ),
    Bug(
        name="expire at the last time of a run",
        function="meshq.broker:Expiry.watch",
        old="        self._arm(queue, view, min(times))\n",
        new="        self._arm(queue, view, max(times))\n",
        checkers=("L2",),
    ),
    Bug(
        name="deliver before the delay is over",
        function="meshq.broker:DelayedDelivery.schedule",
        old="    self._timers.at(DueTime(wait_ms + (",
        new="    self._timers.at(DueTime(wait_ms // 2 + (",
        checkers=("L3",),
    ),
    Bug(
        name="serve what is least urgent first",
        function="meshq.broker:Dispatcher._run",
        old="    for priority_list in priority_lists:\n",
        new="    for priority_list in reversed(priority_lists):\n",
        checkers=("L4",),
    ),
    Bug(
        name="forget the groups of what is not durable",
        function="meshq.broker:Queue.append",
        old="        view.groups = options.groups\n",
        new="        view.groups = options.groups if view.run.position else None\n",
        checkers=("L5",),
    ),
    Bug(
        name="dispatch one message more than the window",
        function="meshq.broker:ConsumerState.credit",
        old="    return self.window - self.unacked\n",
        new="    return self.window + 1 - self.unacked\n",
        checkers=("L6",),
    ),
    Bug(
        name="promise memory that is used",
        function="meshq.broker:MemoryBound._offer",
        old="    free = self.limit_bytes - self.used_bytes\n",
        new="    free = self.limit_bytes\n",
        checkers=("L7",),
    ),
)
