"""A waiting node warns of an owner that hangs, and runs the command that kills it."""

from __future__ import annotations

import attrs
import trio

from meshq.abc import Programs
from meshq.ha._fence_plan import OwnerWatch, fence_argv
from meshq.ha._owner_format import Owner
from meshq.logs import Warnings


class HungOwner:
    """The owner of a store, as a node sees it that could not get the lock.

    ``command``: makes sure that a node is dead; None: nobody does.  ``timeout``: seconds that it has.
    """

    def __init__(self, programs: Programs, command: tuple[str, ...] | None, timeout: float, warnings: Warnings) -> None:
        self._programs = programs
        self._command = command
        self._timeout = timeout
        self._warnings = warnings
        self._watch = OwnerWatch()
        # The owner that was dealt with already.
        self._fenced: Owner | None = None

    async def look(self, owner: Owner | None) -> None:
        """Warn of an owner that hangs, once, and run the command.

        Checkpoint: while the command runs.
        Cancellation: the command is killed.
        Raises: OSError: the command can't be run.
        """
        if not self._watch.look(owner, trio.current_time()) or owner is None:
            return
        same = attrs.evolve(owner, lease_until=0)
        if self._fenced == same:
            return
        self._fenced = same
        text = f"{owner.name} (process {owner.pid} at {owner.host}) has the store, and does not renew its lease"
        self._warnings.say("owner_hangs", f"{text}: nobody takes over until it is dead", owner.name)
        if self._command is None:
            return
        status: int | None = None
        with trio.move_on_after(self._timeout):
            status = await self._programs.run(fence_argv(self._command, owner))
        if status != 0:
            ended = "did not end in time" if status is None else f"ended with {status}"
            self._warnings.say("fence_failed", f"the fence_command for {owner.name} {ended}", owner.name)
            self._fenced = None
