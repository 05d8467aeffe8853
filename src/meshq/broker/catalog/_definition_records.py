"""The records of definitions in the journal: writing, deleting, and reading their filters."""

from __future__ import annotations

from typing import Any

from meshq.broker.catalog._queue_numbers import QueueNumbers
from meshq.broker.catalog._router import Router
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.records import DEFINITION, DEFINITION_BYTES_MAX, encode_definition
from meshq.errors import DamagedError, FilterError, UsageError
from meshq.selector import Filter, parse_filter


class DefinitionRecords:
    """Writes and deletes records of definitions."""

    def __init__(self, release_queue: ReleaseQueue, router: Router) -> None:
        self._release_queue = release_queue
        self._router = router
        #: The numbers of queues.
        self.numbers: QueueNumbers = QueueNumbers(release_queue)

    def write(self, values: dict[str, Any], deletes: list[int] | None = None) -> int:
        """Write a definition, in place of the records at ``deletes``; return the position of the record.

        Raises:
            UsageError: the record would be too long to be read again; nothing was written.
            AddressFullError, JournalBrokenError: nothing was written.
        """
        record = encode_definition(values)
        if len(record) > DEFINITION_BYTES_MAX:
            name = values.get("name", values.get("pattern", ""))
            text = f"the definition of {values['kind']} {name!r} takes {len(record):,} bytes"
            raise UsageError(f"{text}; at most {DEFINITION_BYTES_MAX:,} are possible")
        # A full disk takes a record that deletes another one: it is vital.
        return self._release_queue.write(DEFINITION, [record], deletes=deletes or (), vital=bool(deletes))

    def forget(self, positions: list[int]) -> None:
        """Delete records, by a new record of the highest queue number that was ever given."""
        self.numbers.write(self._router.last_number, positions)


def kept_filter(text: str, position: int) -> Filter | None:
    """Return the filter of a record; None: it has none.

    Raises:
        DamagedError: the filter can't be read.
    """
    try:
        return parse_filter(text) if text else None
    except FilterError as error:
        raise DamagedError("journal", position, "a filter that can be read", text) from error
