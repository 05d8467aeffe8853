"""The pins of message groups that this node has given, in the journal: a restart of the arbiter moves none.

Beside them it keeps who has introduced itself, so that a restart needs nobody who was heard before.  This holds as no
other node hears of a pin before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshq.broker.catalog._pins_machine import Name
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.records import DEFINITION, encode_definition
from meshq.errors import ClosedError, JournalBrokenError


class KeptPins:
    """The pins by name, and where their records stand."""

    def __init__(self, release_queue: ReleaseQueue) -> None:
        self._release_queue = release_queue
        #: By queue and group: the id of the node that consumes it.
        self.pins: dict[Name, str] = {}
        #: The members that introduced nodes knew, and these nodes, each before its life; empty: nobody has.
        self.introduced: tuple[str, str] = "", ""
        self._positions: dict[Name, int] = {}
        self._introduced_at = 0

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Take up a record from the journal."""
        if values["kind"] == "introduced":
            self.introduced, self._introduced_at = (values["members"], values["lives"]), position
            return
        name = values["queue"], values["group"]
        self.pins[name] = values["node"]
        self._positions[name] = position

    def keep(self, name: Name, node: str | None) -> None:
        """Write who has a pin, in place of an earlier record; None: nobody, and the record goes."""
        if self.pins.get(name) == node:
            return
        position = self._positions.pop(name, 0)
        if node is None:
            del self.pins[name]
            if position:
                self._release_queue.doom([position])
            return
        self.pins[name] = node
        self._positions[name] = self._write({"kind": "pin", "queue": name[0], "group": name[1], "node": node}, position)

    def keep_introduced(self, members: str, lives: str) -> None:
        """Write who has introduced itself, in place of the earlier record."""
        if self.introduced == (members, lives):
            return
        self.introduced = members, lives
        values = {"kind": "introduced", "members": members, "lives": lives}
        self._introduced_at = self._write(values, self._introduced_at)

    def when_kept(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all of it is durable."""
        self._release_queue.when_all_is_durable(then)

    def _write(self, values: dict[str, str], position: int) -> int:
        deletes = [position] if position else []
        try:
            # A full disk takes it: without its pin nobody consumes what fills the disk.
            return self._release_queue.write(DEFINITION, [encode_definition(values)], deletes=deletes, vital=True)
        except (ClosedError, JournalBrokenError):
            # The node ends and says why, and answers nobody any more.
            return 0
