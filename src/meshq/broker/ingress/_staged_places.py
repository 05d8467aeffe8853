"""The places of messages that come out of a committed stage: routed as any others, and never refused for good."""

from __future__ import annotations

from collections.abc import Callable

from meshq.address import Target
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._router import Address
from meshq.broker.ingress._distribution import Named, rows_without
from meshq.broker.ingress._filter_scan_plan import placed
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._judged_ids import judge_ids
from meshq.broker.queue._run import StoredRun
from meshq.broker.records import SettledRow
from meshq.broker.records._row_options import read_options
from meshq.errors import AddressFullError, MeshqError, NotFoundError, UsageError
from meshq.message import MessageOrigin
from meshq.wire import duplicate_ids


class StagedPlaces:
    """Routes messages of committed stages."""

    def __init__(self, ingress: Ingress, definitions: Definitions, warn: Callable[[str, str], None]) -> None:
        """``warn`` is told of messages that can't be routed any more."""
        self._ingress = ingress
        self._definitions = definitions
        self._warn = warn

    def place(self, run: StoredRun, target: Target, gone: tuple[SettledRow, ...]) -> bool:
        """Place messages; ``gone``: the rows that the same record removes from the stage.  Return whether a record was
        written.

        Raises:
            AddressFullError: the disk or the address is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        try:
            address, only = self._definitions.address_for(target)
        except (NotFoundError, UsageError) as error:
            return self._dead_letter(run, target, gone, error)
        quota, count = address.quota, run.content.rows
        if quota is not None and quota.full and quota.policy in ("block", "fail"):
            quota.reached()
            raise AddressFullError(f"the address {address.name!r} is full: a committed batch waits for room there")
        if quota is not None and quota.full and quota.policy == "drop":
            self._ingress.drop(quota, count)
            return False
        return self._route(run, (address, only), gone)

    def _route(self, run: StoredRun, found: tuple[Address, Named], gone: tuple[SettledRow, ...]) -> bool:
        ingress, (address, only), count = self._ingress, found, run.content.rows
        assert run.options is not None
        fresh, skipped = judge_ids(run, address) if address.duplicates.capacity else ([], ())
        asked = read_options(run.content, run.options.arrival)
        shares = ingress.shares_of(run, address, only, rows_without(count, skipped), asked)
        taken = placed(shares)
        ingress.unrouted += count - len(skipped) - len(taken)
        if not taken:
            ingress.duplicates += len(skipped)
            return False
        written = ingress.place_shares(run, shares, asked, gone, address.quota)
        if fresh and len(taken) < count - len(skipped):
            # Messages that no queue took were not stored: sent again, they are no duplicates.
            ids = duplicate_ids(run.content)
            fresh = [ids[row] for row in sorted(taken) if ids[row]]
        ingress.book(run, address, fresh, skipped)
        return written

    def _dead_letter(self, run: StoredRun, target: Target, gone: tuple[SettledRow, ...], error: MeshqError) -> bool:
        name = self._definitions.router.settings(target.address).dead_letter_address
        assert run.options is not None
        if name is not None and name != target.address:
            origin = MessageOrigin(target.address, target.queue or target.address, "unrouted")
            run.options = run.options._replace(origin=origin, unstaged=False)
            try:
                return self._ingress.place_moved(run, Target(name, None), gone)
            except UsageError as second:
                error = second
        rows = run.content.rows
        self._ingress.unrouted += rows
        self._warn(
            "batch_unroutable", f"{rows} messages of a committed batch can't be routed, and are dropped: {error}"
        )
        return False
