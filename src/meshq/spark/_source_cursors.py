"""The cursors of a streaming query, one for each partition, as its driver owns them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from meshq.blocking import Cursor
from meshq.blocking.connector import holes_between
from meshq.client import CursorLag
from meshq.errors import CursorLostError, MeshqError, NotFoundError, SettingsError
from meshq.spark._batches_plan import Backlog, admitted, has_to_wait, most_rows
from meshq.spark._losses_plan import Loss, loss_error
from meshq.spark._nodes import AWAY, Brokers, NodeLink, missing_queue
from meshq.spark._offsets_format import Offset, Place, key_of, parts_of
from meshq.spark._options_plan import Access
from meshq.spark._read_settings import ReadSettings, StreamSettings

_log: Final = logging.getLogger("meshq.spark")
#: Seconds between two looks for a node while none serves.
_PAUSE_S: Final = 0.2


class OwnedCursor(NamedTuple):
    """A cursor that this query owns, and where it is."""

    cursor: Cursor
    link: NodeLink


class SourceCursors:
    """The cursors of one query.  Nothing is connected before it is used."""

    def __init__(self, access: Access, settings: ReadSettings, stream: StreamSettings) -> None:
        self._settings = settings
        self._stream = stream
        self._brokers = Brokers(access)
        self._patience_s = access.reach_s
        self._seen_at = 0.0
        self._stack = ExitStack()
        self._owned: dict[str, OwnedCursor] = {}
        # The high marks as they were seen last, and those beyond which a query that ends may not go.
        self._highs: dict[str, int] = {}
        self._targets: dict[str, int] | None = None
        self._waiting_since: float | None = None

    def close(self) -> None:
        """Release the cursors, and disconnect.  Twice is silent."""
        self._owned.clear()
        try:
            with suppress(MeshqError):
                # Whatever can't be released any more is free when its lease has run out.
                self._stack.close()
        finally:
            with suppress(MeshqError):
                self._brokers.close()

    # -- partitions

    def refresh(self) -> None:
        """Look for nodes and queues that are new, and take the cursors there.

        Raises:
            NotFoundError: there is no queue to read.
            SettingsError: it is a multicast address, and no queue.
            CursorHeldError: another query has a cursor.
            MeshqError: as ``client.cursor``.
        """
        queues = self._settings.queues
        links = self._links()
        for link in links.values():
            with suppress(*AWAY):
                for queue in queues.names or queues.among(link.client.queues()):
                    owned = self._owned.get(key_of(queue, link.node))
                    if owned is None or owned.link is not link:
                        with suppress(NotFoundError):
                            self._take(key_of(queue, link.node), queue, link)
        missing = [name for name in queues.names if not any(parts_of(key)[0] == name for key in self._owned)]
        if missing:
            raise missing_queue(links.values(), missing[0])
        if not self._owned:
            raise NotFoundError(f"no node has queues {queues}: subscribe to queues that are there; make one first")

    def _links(self) -> dict[str, NodeLink]:
        """The nodes that are there; none for a while, where a query that has begun waits for a backup.

        Raises:
            ConnectionBrokenError, NotActiveError: none was there for ``partitionTimeout``.
        """
        try:
            links = self._brokers.links()
        except AWAY as error:
            if not self._owned or time.monotonic() - self._seen_at > self._patience_s:
                raise
            _log.warning("no node serves now: %s", error)
            time.sleep(_PAUSE_S)
            return {}
        self._seen_at = time.monotonic()
        return links

    def _take(self, key: str, queue: str, link: NodeLink) -> None:
        start = self._settings.start.at(queue, link.node)
        begin = "latest" if start == "latest" else "earliest"
        cursor = link.client.cursor(queue, self._stream.cursor, start=begin, lease=self._stream.lease_s)  # type: ignore[arg-type]
        self._stack.enter_context(cursor)
        self._owned[key] = OwnedCursor(cursor, link)

    def owned(self, key: str) -> OwnedCursor | None:
        """The cursor of a partition; None: it is not there now."""
        return self._owned.get(key)

    # -- offsets

    def first(self) -> Offset:
        """Where the query begins: the same answer until its first batch is acknowledged.

        Raises:
            MeshqError: as ``refresh``.
            SettingsError: an option names a sequence that is not there.
        """
        self.refresh()
        self._settings.start.check_known(self._owned)
        places = {}
        for ordinal, key in enumerate(sorted(self._owned)):
            begin = self._begin(key)
            places[key] = Place(self._owned[key].cursor.epoch, ordinal, begin, begin)
        return Offset(self._stream.cursor, places)

    def _begin(self, key: str) -> int:
        cursor, wanted = self._owned[key].cursor, self._settings.start.at(*parts_of(key))
        if isinstance(wanted, str):
            return cursor.processed
        high = cursor.high_mark()
        if wanted > high or (wanted < cursor.processed and self._stream.fail_on_loss):
            allowed = f"a sequence from {cursor.processed} to {high}"
            raise SettingsError(f"startingOffsets[{key!r}]", wanted, allowed)
        return max(wanted, cursor.processed)

    def check(self, offset: Offset) -> None:
        """See that an offset is of these cursors, and that nothing behind it is acknowledged.

        Raises:
            CursorLostError: a cursor was registered anew since.
            DataLossError: messages behind the offset are gone.
        """
        for key, place in offset.places.items():
            owned = self._owned.get(key)
            if owned is None:
                continue
            cursor = owned.cursor
            if cursor.epoch != place.epoch:
                raise CursorLostError(
                    f"the cursor {cursor.name!r} of {key} was registered anew: the checkpoint has a place of epoch "
                    f"{place.epoch}, the broker has epoch {cursor.epoch}; a new checkpoint begins with what is there"
                )
            if place.next < cursor.processed and self._stream.fail_on_loss:
                raise loss_error(
                    key, Loss(place.next, cursor.processed, "acknowledged"), (place.next, cursor.processed)
                )

    def ack(self, offset: Offset) -> None:
        """Acknowledge everything before an offset, on the nodes that are there; the others hear of it later.

        Raises:
            CursorLostError: another query has taken a cursor.
        """
        for key, place in offset.places.items():
            owned = self._owned.get(key)
            if owned is not None and place.next > owned.cursor.processed and owned.link.up:
                with suppress(*AWAY):
                    owned.cursor.ack_to(place.next)

    def latest(self, start: Offset, *, limited: bool) -> Offset:
        """The end of the next batch: ``start`` itself if there is none; ``limited``: whether the options bound it.

        Raises:
            MeshqError: as ``refresh`` and ``check``.
        """
        self.refresh()
        self.check(start)
        if self._stream.eager:
            self.ack(start)
        known = self._with_new(start)
        self._see_highs()
        backlogs = {key: self._backlog(key, place.next, limited=limited) for key, place in known.places.items()}
        waiting = sum(backlog.size for backlog in backlogs.values())
        # Holes alone are passed at once.
        empty = all(backlog.lo == backlog.hi for backlog in backlogs.values())
        if empty or (limited and waiting and self._has_to_wait(waiting)):
            return start
        self._waiting_since = None
        most = most_rows(self._stream.max_rows, self._stream.max_bytes, self._mean_bytes()) if limited else None
        end = known.moved(admitted(backlogs, most))
        self._pin(end)
        return end

    def _with_new(self, start: Offset) -> Offset:
        """An offset with the partitions that are new since."""
        places = dict(start.places)
        ordinal = 1 + max((place.ordinal for place in places.values()), default=-1)
        for key in sorted(self._owned.keys() - places.keys()):
            cursor = self._owned[key].cursor
            places[key] = Place(cursor.epoch, ordinal, cursor.processed, cursor.processed)
            ordinal += 1
        return Offset(start.cursor, places)

    def _see_highs(self) -> None:
        for key, owned in self._owned.items():
            if owned.link.up:
                with suppress(*AWAY):
                    self._highs[key] = owned.cursor.high_mark()

    def _end(self, key: str, default: int) -> int:
        high = self._highs.get(key, default)
        return high if self._targets is None else min(high, self._targets.get(key, default))

    def _backlog(self, key: str, lo: int, *, limited: bool) -> Backlog:
        """Return the sequences of a partition that wait, with the first holes among them if it is counted."""
        backlog = Backlog(lo, max(lo, self._end(key, lo)))
        owned = self._owned.get(key)
        if limited and backlog.size and owned is not None and owned.link.up:
            with suppress(*AWAY):
                found = holes_between(owned.link.client, parts_of(key)[0], backlog.lo, backlog.hi, pages=1)
                return backlog._replace(holes=tuple((hole.lo, hole.hi) for hole in found))
        return backlog

    def _has_to_wait(self, waiting: int) -> bool:
        if self._targets is not None:
            # A query that ends with what is there waits for nothing more.
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        stream = self._stream
        return has_to_wait(waiting, stream.min_rows, now - self._waiting_since, stream.max_delay_s)

    def _mean_bytes(self) -> float:
        """The mean size of the messages that wait."""
        if self._stream.max_bytes is None:
            return 0.0
        lags: list[CursorLag] = []
        for owned in self._owned.values():
            if owned.link.up:
                with suppress(*AWAY):
                    lags.append(owned.cursor.lag())
        messages = sum(lag.messages for lag in lags)
        return sum(lag.bytes for lag in lags) / messages if messages else 0.0

    def _pin(self, end: Offset) -> None:
        for key, place in end.places.items():
            owned = self._owned.get(key)
            if owned is not None and owned.link.up:
                with suppress(*AWAY):
                    owned.cursor.pin(place.next)

    def aim(self) -> None:
        """Note the present high marks: the query ends there.

        Raises:
            MeshqError: as ``refresh``.
        """
        self.refresh()
        self._see_highs()
        self._targets = dict(self._highs)

    def empty(self) -> bool:
        """Whether every cursor has acknowledged all that there is.

        Raises:
            MeshqError: a node does not answer.
        """
        return all(owned.cursor.lag().messages == 0 for owned in self._owned.values())

    def highs(self, start: Offset) -> Offset:
        """The high marks as they were seen last, as an offset."""
        ends: Mapping[str, int] = {key: max(place.next, self._highs.get(key, 0)) for key, place in start.places.items()}
        return start.moved(ends)
