"""Duplicate ids and queues that a leaving node hands over to this node."""

from __future__ import annotations

from collections.abc import Callable

from meshq.broker.catalog._definitions import Definitions
from meshq.broker.log._duplicates import IdChunk
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._delivery_options import QueueThere
from meshq.broker.records import HANDED_IDS, encode_handed_ids
from meshq.wire import IdList


class HandedIds:
    """Enters the duplicate ids of leaving nodes into the windows of this node, and makes the queues of these nodes."""

    def __init__(self, definitions: Definitions, release_queue: ReleaseQueue, links: dict[bytes, int]) -> None:
        """``links``: the highest number of each link that is stored."""
        self._definitions = definitions
        self._release_queue = release_queue
        self._links = links

    def define(self, address: str, there: QueueThere, link: tuple[bytes, int], then: Callable[[], None]) -> None:
        """Make a queue that is missing here; ``then`` is called when it is durable.

        Made twice it is the same: so the link's number needs no record.

        Raises:
            UsageError: another queue has its name, or the address has the other routing type.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        self._definitions.queue_there(address, there)
        self._links[link[0]] = link[1]
        self._release_queue.when_all_is_durable(then)

    def take(
        self,
        address: str,
        there: QueueThere,
        found: IdList,
        link: tuple[bytes, int],
        then: Callable[[], None],
        *,
        durable: bool,
    ) -> None:
        """Remember ids of an address; ``then`` is called when they are durable.  An id that is known keeps its place.

        ``durable``: whether their messages are.  Those of others stand in no record, as when they came first.

        Taken twice they are the same: so the link's number needs no record.

        Raises:
            UsageError: the address has the other routing type; nothing changed.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        window = self._definitions.address_there(address, there).duplicates
        rows = window.fresh_rows(found.ids, durable=durable)
        fresh = found.ids if rows is None else tuple(found.ids[row] for row in rows)
        if fresh and window.capacity:
            position = 0
            if durable:
                record = [encode_handed_ids(found.newer, address, fresh)]
                position = self._release_queue.write(HANDED_IDS, record)
            self._release_queue.doom(window.add(IdChunk(position, fresh, position, found.newer, durable=durable)))
        self._links[link[0]] = link[1]
        self._release_queue.when_all_is_durable(then)
