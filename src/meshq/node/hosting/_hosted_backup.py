"""A backup that a broker runs for another node, as programs see it."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class HostedBackup:
    """A backup that a broker runs for another node, at one moment.

    ``requester`` and ``node_id``: the name and the id of that node.  ``state``, ``role`` and ``phase``: those of the
    backup, a broker of its own.  ``urls``: where it listens.  ``last_error``: the last thing that went wrong with it.
    """

    name: str
    requester: str
    node_id: str
    state: str
    role: str
    phase: str
    urls: tuple[str, ...] = ()
    last_error: str = ""

    def row(self) -> dict[str, Any]:
        """Return it as a row of an answer."""
        return {
            "backup_name": self.name,
            "requester": self.requester,
            "node_id": self.node_id,
            "state": self.state,
            "role": self.role,
            "phase": self.phase,
        }
