"""The node around a core, as far as the core knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from meshq.errors import MeshqError
from meshq.statistics import EndedBackup
from meshq.wire import LinkOpening

#: What is called with the name of a backup, or with an empty one and the reason why there is none.
BackupTold = Callable[[str, str], None]
#: What is called with a backup that was ended, or with the reason why it was not.
EndTold = Callable[[EndedBackup | MeshqError], None]


class HostNode(Protocol):
    """The node that runs a core."""

    @property
    def resumes(self) -> bool:
        """Whether ``resume_soon`` has an effect; if not, all work is done at once."""

    def resume_soon(self) -> None:
        """Call ``Core.resume`` soon, after other tasks have run."""

    def warn(self, event: str, text: str) -> None:
        """Warn an operator: the name of the event, and a sentence."""

    def meet_stranger(self, opening: LinkOpening, error: MeshqError) -> None:
        """Note that a node opened a link that has this node's id, and was refused."""

    def describe(self) -> dict[str, Any]:
        """Return the statistics of the whole node."""

    def role(self) -> dict[str, Any]:
        """Return the role of the node; ``waiting``: rows of those that would take over."""

    def hosted_backups(self, node_id: str) -> dict[str, Any]:
        """Return the number of backups that the node runs, and the name of the backup of the node of an id;
        ``hosted``: a row for each backup."""

    def host_backup(self, node_id: str, request: bytes, told: BackupTold, *, ends: bool, clears: bool) -> None:
        """Begin to run the backup of another node; ``ends``: run it no more; ``clears``: another one makes room for it.

        ``told`` is called once, also in this call, with the name of the backup or the reason why there is none.
        """

    def end_backup(self, name: str, told: EndTold, *, force: bool) -> None:
        """Begin to end the backup of a node that is gone for good; ``told`` is called once, also in this call.

        ``force``: also if the node answers, or the backup serves.
        """

    def order_role(self, *, back: bool, force: bool) -> int:
        """Order a change of role, which happens later; return the epoch that ends.

        ``back``: to the node that had the role first.  ``force``: nothing is finished first.

        Raises:
            RefusedError: nobody is there who could take over.
            NotActiveError: the node does not have the role.
        """
