"""The comparison of the store of a node that serves with that of its replica, while both go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs
import trio

from meshq.abc import Difference, RecordSource, ReplicationStart, StoreComparer
from meshq.concurrency import ChangeSignal
from meshq.errors import NotFoundError, RefusedError
from meshq.ha.replication.comparison._comparison_plan import Compared, pack_digests

#: Seconds between two looks whether everything is on the disk that was placed.
LOOK_S: Final = 0.002


class ComparedReplica(Protocol):
    """A replica, as a comparison needs it."""

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def ended(self) -> bool:
        """Whether nothing more is sent."""

    @property
    def told(self) -> bool:
        """Whether the replica was told that it is in sync."""

    @property
    def compares(self) -> bool:
        """Whether the replica is of a version that can compare its store."""

    def compare(self, number: int, beyond: int, upto: int, digests: bytes) -> None:
        """Ask for the first difference between two positions, once all is there that is placed."""


class ComparedTerm(Protocol):
    """A term, as a comparison needs it."""

    @property
    def start(self) -> ReplicationStart | None:
        """The journal, once it is open."""

    @property
    def ended(self) -> bool:
        """Whether no batch follows."""

    @property
    def compared(self) -> Compared:
        """The last answer of a replica."""

    @property
    def changed(self) -> ChangeSignal:
        """Told when there is an answer."""

    @property
    def positions(self) -> ComparedPositions:
        """How far the journal and the replica are."""


class ComparedPositions(Protocol):
    """The positions of a journal and of its replica."""

    @property
    def placed(self) -> int:
        """The last position that was placed."""

    @property
    def has(self) -> int:
        """The last position on the disk of the replica."""

    @property
    def in_sync(self) -> bool:
        """Whether the replica has all that was confirmed."""


@attrs.frozen
class _Compared:
    """A replica that is in sync, and the journal with which it is compared."""

    replica: ComparedReplica
    term: ComparedTerm
    source: RecordSource

    @property
    def gone(self) -> bool:
        return self.replica.ended or self.term.ended


class Comparer(StoreComparer):
    """The comparisons of one node, one after the other.

    ``followed``: returns the replica, if there is one, and the term.
    """

    def __init__(self, followed: Callable[[], tuple[ComparedReplica | None, ComparedTerm | None]]) -> None:
        self._followed = followed
        self._lock = trio.Lock()
        # The last question, by which its answer is known.
        self._number = 0

    async def compare(self, replica: str) -> Difference | None:
        """Compare the live records of both, up to the lower one of their durable positions.

        A stretch of the records here goes to the replica behind all that was placed, so whatever is deleted here is
        deleted there, too.  What is deleted there only may have been deleted here meanwhile, and is looked at again.
        """
        compared = self._find(replica)
        async with self._lock:
            beyond, upto = 0, min(compared.source.synced, compared.term.positions.has)
            while beyond < upto:
                here = await compared.source.live(beyond, upto)
                end = here[-1].position if here else upto
                position, there = await self._asked(compared, beyond, end, pack_digests(here))
                if not position:
                    beyond = end
                    continue
                digest = next((one.digest for one in here if one.position == position), None)
                if digest is None or there is not None or await self._is_live(compared, position):
                    return Difference(position=position, here=digest, there=there)
                beyond = position
        return None

    def _find(self, replica: str) -> _Compared:
        found, term = self._followed()
        source = term.start.source if term is not None and term.start is not None else None
        if found is None or term is None or source is None or found.name != replica:
            raise NotFoundError(f"no node {replica!r} follows this one")
        if found.ended or not (term.positions.in_sync and found.told):
            raise RefusedError(f"the replica {replica!r} is not in sync")
        if not found.compares:
            # The question would end its link.
            raise RefusedError(f"the replica {replica!r} is of an older version, which can't compare its store")
        return _Compared(found, term, source)

    async def _asked(self, compared: _Compared, beyond: int, upto: int, digests: bytes) -> tuple[int, bytes | None]:
        """Return the first position that differs, or 0, and the digest of its record at the replica.

        Raises: RefusedError.
        """
        name = compared.replica.name
        self._number += 1
        compared.replica.compare(self._number, beyond, upto, digests)
        while compared.term.compared.number != self._number:
            if compared.gone:
                raise RefusedError(f"the replica {name!r} was lost before its store was compared")
            await compared.term.changed.wait()
        answer = compared.term.compared
        if answer.failure:
            raise RefusedError(f"the replica {name!r} can't read its store: {answer.failure}")
        if answer.position and not beyond < answer.position <= upto:
            raise RefusedError(f"the replica {name!r} has compared another part of its store")
        return answer.position, answer.digest

    async def _is_live(self, compared: _Compared, position: int) -> bool:
        """Whether a record is live here, once all is on the disk that was placed by now."""
        placed = compared.term.positions.placed
        while compared.source.synced < placed:
            if compared.gone:
                break
            await trio.sleep(LOOK_S)
        return bool(await compared.source.live(position - 1, position))
