"""The pins of message groups that this node has given, in the journal: a restart of the arbiter moves none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshq.broker.catalog._pins_machine import Name
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.records import DEFINITION, encode_definition
from meshq.errors import AddressFullError, ClosedError, JournalBrokenError


class KeptPins:
    """The pins by name, and where their records stand."""

    def __init__(self, release_queue: ReleaseQueue, warn: Callable[[str, str], None]) -> None:
        """``warn`` is told of an event, with a text."""
        self._release_queue = release_queue
        self._warn = warn
        #: By queue and group: the id of the node that consumes it.
        self.pins: dict[Name, str] = {}
        self._positions: dict[Name, int] = {}

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Take up a record from the journal."""
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
        try:
            self._write(name, node, position)
        except AddressFullError:
            self._warn("pins_not_kept", "the disk has no room to keep pins of message groups: a restart may move some")
            if position:
                self._release_queue.doom([position])
        except (ClosedError, JournalBrokenError):
            # The node ends and says why.
            pass

    def _write(self, name: Name, node: str, position: int) -> None:
        values = {"kind": "pin", "queue": name[0], "group": name[1], "node": node}
        deletes = [position] if position else []
        self._positions[name] = self._release_queue.write(DEFINITION, [encode_definition(values)], deletes=deletes)
