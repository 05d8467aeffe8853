"""The term of a node: its bounds, its role, and the place for orders."""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from meshq.abc import RoleBoard, TermGuard
from meshq.broker import BackupTold, EndTold
from meshq.errors import NotFoundError, RefusedError, short


class RoleOffice(Protocol):
    """The place that knows the role of a node and takes orders about it."""

    def role_values(self) -> dict[str, Any]:
        """Return the role, as operations answer it."""

    def order(self, *, back: bool, force: bool) -> int:
        """Order a change of role; return the epoch that ends."""

    def hosted_backups(self, node_id: str) -> dict[str, Any]:
        """Return the backups that the node runs, as operations answer them."""

    def host_backup(self, node_id: str, request: bytes, told: BackupTold, *, ends: bool, clears: bool) -> None:
        """Begin to run the backup of another node; ``ends``: run it no more; ``clears``: another one makes room for it.

        ``told`` is called once, also in this call, with the name of the backup or the reason why there is none.
        """

    def end_backup(self, name: str, told: EndTold, *, force: bool) -> None:
        """Begin to end the backup of a node that is gone for good; ``told`` is called once, also in this call."""


class NoOffice:
    """Of a node without a broker around it."""

    def role_values(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def hosted_backups(self, node_id: str) -> dict[str, Any]:
        """Return that there are none."""
        mine = {"mine": "", "mine_ready": False, "mine_request": "", "mine_life": "", "mine_error": ""}
        return {"backups": 0, "max_backups": 0, **mine, "hosted": []}

    def host_backup(self, node_id: str, request: bytes, told: BackupTold, *, ends: bool, clears: bool) -> None:
        """Refuse."""
        told("", "the node runs no backups of others")

    def end_backup(self, name: str, told: EndTold, *, force: bool) -> None:
        """Say that there is none."""
        told(NotFoundError(f"the node runs no backup {short(name)}"))

    def order(self, *, back: bool, force: bool) -> int:
        """Refuse."""
        raise RefusedError("the node has no policy by which another node takes over")


@attrs.frozen
class NodeTerm:
    """The term of a node.

    ``guard``: the bounds of the term; None: there are none.  ``board``: has the role of the node.  ``office``: takes
    orders about it.  ``root``: the directory that the broker was given, in which that of the term's store may lie.
    """

    guard: TermGuard | None = None
    board: RoleBoard = attrs.field(factory=RoleBoard)
    office: RoleOffice = attrs.field(factory=NoOffice)
    root: str | None = None
