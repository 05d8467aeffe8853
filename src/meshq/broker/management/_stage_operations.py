"""The management operations of stages and sinks: one function for each."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from meshq.address import MANAGEMENT, parse_target
from meshq.broker.access._access import may, permit, permit_keeping
from meshq.broker.management._pages import page_of
from meshq.broker.work._long_operations import Values
from meshq.errors import UsageError
from meshq.ids import check_number, check_sink

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester

#: Rows of one answer that are looked at.
_PAGE_ROWS: Final = 64


def commit_batch(
    core: Core, asker: Requester | None, sink: str, batch: int, stages: bytes | list[int], purge: str = ""
) -> Values:
    """Commit a batch: the stages that count, and no others of the sink up to it; `already`: it was committed before.
    With `purge`, an address, what waits there goes by the same decision; that takes `manage` there."""
    if purge:
        permit(asker, "manage", parse_target(purge, "purge").address)
    user = _user(core, asker, sink)
    if asker is not None and core.transactions.stages.ledger.owner(sink) is None:
        permit_keeping(asker)
    decision = core.transactions.stages.commit(sink, batch, _numbers(stages), user, purge)
    return {"already": decision.already, "messages": decision.messages}


def abandon_batch(core: Core, asker: Requester | None, sink: str, batch: int) -> Values:
    """Drop the stages of a batch that is not committed; one that is stays so."""
    return {"stages": core.transactions.stages.abandon(sink, batch, _user(core, asker, sink))}


def delete_sink(core: Core, asker: Requester | None, sink: str) -> Values:
    """Forget the last batch of a sink, and drop its stages."""
    core.transactions.stages.delete_sink(check_sink(sink))
    return {}


def sinks(core: Core, asker: Requester | None, after: int = 0) -> Values:
    """A page of the sinks in the ledger that are the asker's, or all of them for who may manage the node."""
    ledger = core.transactions.stages.ledger
    entries = [facts for name, (facts, _) in sorted(ledger.sinks.items()) if _may_see(asker, facts.user)]
    rows: list[Values] = [
        {
            "sink": facts.sink,
            "user": facts.user,
            "batch": facts.batch,
            "placing": len(ledger.placing(facts.sink)),
            "stages": sum(stage.waits for stage in ledger.of(facts.sink)),
        }
        for facts in entries[max(after, 0) : max(after, 0) + _PAGE_ROWS]
    ]
    return _page("sinks", rows, len(entries), after)


def stages(core: Core, asker: Requester | None, sink: str = "", after: int = 0) -> Values:
    """A page of the stages of a sink, or of all, that are the asker's, or all of them for who may manage the node."""
    known, now_ms = core.transactions.stages.ledger.stages.values(), core.timers.elapsed_ms
    found = [one for one in known if sink in ("", one.facts.sink) and _may_see(asker, one.facts.user)]
    rows: list[Values] = [
        {
            "stage": one.facts.number,
            "sink": one.facts.sink,
            "user": one.facts.user,
            "batch": one.facts.batch,
            "partition": one.facts.partition,
            "attempt": one.facts.attempt,
            "state": one.life.state,
            "messages": core.definitions.stages.queue(one).counts.ready,
            "expires_in": max(0.0, (one.used_ms + one.facts.timeout_ms - now_ms) / 1000) if one.waits else 0.0,
        }
        for one in found[max(after, 0) : max(after, 0) + _PAGE_ROWS]
    ]
    return _page("stages", rows, len(found), after)


def _page(name: str, rows: list[Values], total: int, after: int) -> Values:
    page = page_of(name, rows, 0)
    return {**page, "more": max(after, 0) + len(page[name]) < total}


def _numbers(stages: bytes | list[int]) -> list[int]:
    """Read the numbers of stages: four bytes each in a frame, a list in a request."""
    if isinstance(stages, bytes):
        if len(stages) % 4:
            raise UsageError(f"the numbers of stages have four bytes each, not {len(stages)} in all")
        return list(struct.unpack(f"<{len(stages) // 4}I", stages))
    return [check_number("stages", one) for one in stages]


def _user(core: Core, asker: Requester | None, sink: str) -> str:
    """Return the user in whose name a sink is used; empty for any user.

    Raises:
        SecurityError: it is another user's, and the asker may not manage the node.
    """
    user = asker.owner[1] if asker is not None else ""
    owner = core.transactions.stages.ledger.owner(check_sink(sink))
    if owner is None or owner == user:
        return user
    permit(asker, "manage", MANAGEMENT)
    return owner


def _may_see(asker: Requester | None, user: str) -> bool:
    return asker is None or asker.owner[1] == user or may(asker, "manage", MANAGEMENT)
