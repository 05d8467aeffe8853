"""The comparison of the store of a node that serves with that of its replica, while both go on."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from meshq.abc import Difference, RecordSource, StoreComparer
from meshq.errors import NotFoundError, RefusedError
from meshq.ha.replication._comparison_plan import pack_digests
from meshq.ha.replication._feeder import LOOK_S, Feeder
from meshq.ha.replication._term import ReplicationTerm


@attrs.frozen
class _Compared:
    """A replica that is in sync, and the journal with which it is compared."""

    feeder: Feeder
    term: ReplicationTerm
    source: RecordSource

    @property
    def gone(self) -> bool:
        return self.feeder.ended or self.term.ended


class Comparer(StoreComparer):
    """The comparisons of one node, one after the other.

    ``followed``: returns the replica, if there is one, and the term.
    """

    def __init__(self, followed: Callable[[], tuple[Feeder | None, ReplicationTerm | None]]) -> None:
        self._followed = followed
        self._lock = trio.Lock()

    async def compare(self, replica: str) -> Difference | None:
        """Compare the live records of both, up to the lower one of their durable positions.

        A stretch of the records here goes to the replica behind all that was placed, so whatever is deleted here is
        deleted there, too.  What is deleted there only may have been deleted here meanwhile, and is looked at again.
        """
        compared = self._find(replica)
        async with self._lock:
            beyond, upto = 0, min(compared.source.synced, compared.term.replicator.has)
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
        feeder, term = self._followed()
        source = term.start.source if term is not None and term.start is not None else None
        if feeder is None or term is None or source is None or feeder.wanted.node_name != replica:
            raise NotFoundError(f"no node {replica!r} follows this one")
        if feeder.ended or not (term.replicator.in_sync and feeder.told):
            raise RefusedError(f"the replica {replica!r} is not in sync")
        return _Compared(feeder, term, source)

    async def _asked(self, compared: _Compared, beyond: int, upto: int, digests: bytes) -> tuple[int, bytes | None]:
        """Return the first position that differs, or 0, and the digest of its record at the replica.

        Raises: RefusedError.
        """
        feeder = compared.feeder
        name = feeder.wanted.node_name
        number = feeder.compare(beyond, upto, digests)
        while feeder.compared.number < number:
            if compared.gone:
                raise RefusedError(f"the replica {name!r} was lost before its store was compared")
            await compared.term.changed.wait()
        answer = feeder.compared
        if answer.failure:
            raise RefusedError(f"the replica {name!r} can't read its store: {answer.failure}")
        if answer.position and not beyond < answer.position <= upto:
            raise RefusedError(f"the replica {name!r} has compared another part of its store")
        return answer.position, answer.digest

    async def _is_live(self, compared: _Compared, position: int) -> bool:
        """Whether a record is live here, once all is on the disk that was placed by now."""
        placed = compared.term.replicator.placed
        while compared.source.synced < placed:
            if compared.gone:
                break
            await trio.sleep(LOOK_S)
        return bool(await compared.source.live(position - 1, position))
