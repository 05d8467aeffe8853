"""The answers of a node to its core."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio

from meshq.broker import BackupTold, EndTold
from meshq.errors import MeshqError
from meshq.logs import Warnings
from meshq.node._paging import PageRequests
from meshq.node.terms._node_term import RoleOffice
from meshq.wire import LinkOpening


def elapsed_ms() -> float:
    """The time of the loop's monotonic clock in microseconds precision, so that a woken timer is due."""
    return round(trio.current_time() * 1_000, 3)


class CoreHost:
    """The node, as its core sees it."""

    def __init__(self, warnings: Warnings, describe: Callable[[], dict[str, Any]], office: RoleOffice) -> None:
        self._warnings = warnings
        self._office = office
        self._describe = describe
        # Some work of the core is left for another turn.
        self._unfinished = trio.Event()
        #: Whether a task waits for unfinished work.
        self.resumes: bool = False
        self.page_requests: PageRequests = PageRequests()

    def resume_soon(self) -> None:
        """Have the task of unfinished work go on."""
        self._unfinished.set()

    async def unfinished(self) -> None:
        """Wait until work is left for another turn.

        Checkpoint: always.
        Cancellation: the work is still left.
        """
        await self._unfinished.wait()
        self._unfinished = trio.Event()

    def warn(self, event: str, text: str) -> None:
        """Log a warning, unless it was logged just now."""
        self._warnings.say(event, text)

    def meet_stranger(self, opening: LinkOpening, error: MeshqError) -> None:
        """Warn of another node with the same node id, unless that node is the present one."""
        if error.refusal == "duplicate_node":
            text = f"a node is refused: {error}; is its data directory a copy of this node's?"
            self._warnings.say("duplicate_node", text, opening.node_name, level=logging.ERROR)

    def describe(self) -> dict[str, Any]:
        """Return the statistics of the whole node."""
        return self._describe()

    def role(self) -> dict[str, Any]:
        """Return the role of the node."""
        return self._office.role_values()

    def hosted_backups(self, node_id: str) -> dict[str, Any]:
        """Return the backups that the node runs."""
        return self._office.hosted_backups(node_id)

    def host_backup(self, node_id: str, request: bytes, told: BackupTold, *, ends: bool, clears: bool) -> None:
        """Run the backup of another node, or end it."""
        self._office.host_backup(node_id, request, told, ends=ends, clears=clears)

    def end_backup(self, name: str, told: EndTold, *, force: bool) -> None:
        """End a backup by hand."""
        self._office.end_backup(name, told, force=force)

    def order_role(self, *, back: bool, force: bool) -> int:
        """Order a change of role."""
        return self._office.order(back=back, force=force)
