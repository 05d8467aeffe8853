"""The role of the node that a client is connected to, among the nodes of its pair."""

from __future__ import annotations

from typing import Final

import trio

from meshq.client.session._client_context import ClientContext
from meshq.errors import CallTimeoutError, SettingsError, UnblockedError
from meshq.settings import check_bool, check_seconds
from meshq.statistics import EndedBackup, RoleStatus

#: Seconds between two questions who serves.
_POLL_S: Final = 0.1


class RoleCalls:
    """The calls of a client that are about high availability."""

    _context: ClientContext

    async def ha(self) -> RoleStatus:
        """Return the role of the node, as ``broker.ha`` has it in its program.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        values, rows = await self._context.pages("ha", ("waiting_name", "waiting_url"))
        return RoleStatus.of(values, [(row["waiting_name"], row["waiting_url"]) for row in rows])

    async def fail_over(self, *, force: bool = False, timeout: float = 30) -> None:  # noqa: ASYNC109
        """Have the node hand its role over to a waiting node, and return when that node serves this client.

        ``force``: nothing is finished first, and clients are not told.

        Checkpoint: always.  Cancellation: the order stands.
        Raises:
            RefusedError: no other node waits; outcome not done.
            CallTimeoutError: no node serves this client within ``timeout`` seconds; outcome unknown.
            UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        check_bool("force", force)
        check_seconds("timeout", timeout)
        values = await self._context.ask("fail_over", force=force)
        await self._followed(values["epoch"], timeout)

    async def fail_back(self, *, timeout: float = 30) -> None:  # noqa: ASYNC109
        """Have the node hand its role back to the waiting primary, and return when that node serves this client.

        Checkpoint: always.  Cancellation: the order stands.
        Raises:
            RefusedError: no primary waits, or the node is the primary; outcome not done.
            CallTimeoutError: no node serves this client within ``timeout`` seconds; outcome unknown.
            UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        check_seconds("timeout", timeout)
        values = await self._context.ask("fail_back")
        await self._followed(values["epoch"], timeout)

    async def end_backup(self, name: str, *, force: bool = False) -> EndedBackup:
        """Have the node end a backup that it runs for another node, because that node is gone for good.

        What is stored there is kept, and the result says where.  ``name``: as in ``broker.ha.hosted``.  ``force``: also
        if the node answers where it was, or the backup serves.

        Checkpoint: always.  Cancellation: it is ended all the same.
        Raises:
            SettingsError: an argument has another type; nothing was done.
            NotFoundError: the node runs no backup of this name.
            RefusedError: the node answers, or the backup serves, or its directory can't be renamed; outcome not done.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        if not isinstance(name, str):
            raise SettingsError("name", name, "the name of a backup")
        check_bool("force", force)
        return EndedBackup.of(await self._context.ask("end_backup", name=name, force=force))

    async def _followed(self, epoch: int, timeout_s: float) -> None:
        """Wait until a node serves in a later epoch."""
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    status = await self.ha()
                except UnblockedError:
                    # The node has gone, as it was told; a client that does not reconnect says so with another error.
                    continue
                if status.epoch > epoch and status.phase == "active":
                    return
                await trio.sleep(_POLL_S)
        text = f"no other node serves this client within {timeout_s:g} s"
        raise CallTimeoutError(text, outcome="unknown") from trio.TooSlowError("the time is over")
