"""The management operations that say where messages go, and where a message is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from meshq import limits
from meshq.address import Target, parse_place
from meshq.broker.access._access import may_look
from meshq.broker.ingress._explainer import Explainer
from meshq.broker.ingress._filters_at import costly, filters_explained
from meshq.broker.ingress._sample_run import imagined
from meshq.broker.management._pages import page_of
from meshq.broker.settlement._tracing import trace as tracing
from meshq.broker.work._fair_scheduler import NODE, CostlyScan
from meshq.broker.work._long_operations import FairTurnWait, Steps, Values
from meshq.errors import SettingsError
from meshq.ids import MessageId
from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester
    from meshq.broker.queue._run import StoredRun

#: Rows behind the first one of a page: there is another page if there are so many.
_ROWS_AHEAD: Final = 200
#: What a row of an explanation costs, as that of so many small messages.
_ROW_WORK: Final = 8


def explain_route(
    core: Core,
    asker: Requester | None,
    address: str,
    properties: bytes | dict[str, Any] | None = None,
    headers: bytes | dict[str, Any] | None = None,
    durable: bool = True,
    priority: int = limits.PRIORITY_DEFAULT,
    user: str | None = None,
    after: int = 0,
) -> Steps:
    """Say where a message would go, and why; without `properties`, where any message may."""
    target = parse_place(address)
    message = imagined(target.address, properties, headers, durable=durable, priority=priority)
    return _explained(core, asker, target, message, user, after)


def _explained(
    core: Core, asker: Requester | None, target: Target, message: StoredRun | None, user: str | None, after: int
) -> Steps:
    """Explain a route, in steps if the filters are costly."""
    owner = asker.owner if asker is not None else NODE
    wait_for_turn = partial(FairTurnWait, owner, asker or core, alive=lambda: asker is None or not asker.ended)
    while (
        message is not None
        and (asked := costly(core.pending.fair_scheduler, owner, message, _filters_on(core, target))) is not None
    ):
        yield wait_for_turn(asked)
        if asker is not None and asker.ended:
            yield {}
            return
    explainer = Explainer(core.router, message)
    known = _KnownRows(core, asker)
    for count in explainer.follow(target):
        known.add(explainer.rows)
        if len(known.rows) > max(after, 0) + _ROWS_AHEAD:
            # No page gets there.
            break
        work = _ROW_WORK * count
        if not core.pending.fair_scheduler.afford(owner, work):
            yield wait_for_turn(CostlyScan(iter(()), work))
            if asker is not None and asker.ended:
                yield {}
                return
    known.add(explainer.rows)
    rows = list(known.rows.values())
    yield {**_about_target(core, asker, target, user), **page_of("steps", rows, after)}


def _filters_on(core: Core, target: Target) -> list[Filter]:
    return filters_explained(core.router, target) if core.router.sieves else []


def _about_target(core: Core, asker: Requester | None, target: Target, user: str | None) -> Values:
    known = core.router.addresses.get(target.address)
    settings = core.router.settings(target.address)
    creates = core.definitions.would_make(target)
    rights = core.access.of(("client", user)) if user else asker.rights if asker is not None else None
    needed = {"send", "create"} if creates else {"send"}
    named = target.queue if creates and target.queue is not None else target.address
    return {
        "address": target.address,
        "routing": known.routing if known is not None else settings.default_routing,
        "exists": known is not None,
        "creates": creates,
        "permitted": rights is None or (needed <= rights.at(target.address) and needed - {"send"} <= rights.at(named)),
        "waits": _why_senders_wait(core, target.address),
    }


class _KnownRows:
    """The steps on a way, as far as the asker may know them: diverts may lead to where it may not look."""

    __slots__ = ("_asker", "_core", "_named", "_seen", "rows")

    def __init__(self, core: Core, asker: Requester | None) -> None:
        self._core = core
        self._asker = asker
        self.rows: dict[int | str, Values] = {}
        # Addresses of which the asker knows that messages come there.
        self._named: dict[str, None] = {}
        # Steps that were looked at.
        self._seen = 0

    def add(self, rows: list[Values]) -> None:
        """Add the rows that the asker may see."""
        if rows and not self._seen:
            self._named[rows[0]["address"]] = None
        for row in rows:
            self._seen += 1
            address = row["address"]
            if may_look(self._asker, address):
                self.rows[self._seen] = row
                rule = self._core.router.diverts.by_name.get(row["name"]) if row["kind"] == "divert" else None
                if rule is not None:
                    self._named[rule.forwarding_address] = None
            elif address in self._named and address not in self.rows:
                why = "it comes there, and what becomes of it the user may not know"
                about = {"name": "", "via": "", "filter": "", "gets": "maybe", "why": why}
                self.rows[address] = {"kind": "queue", "address": address, **about}
        rows.clear()


def _why_senders_wait(core: Core, address: str) -> str:
    quota = core.router.quotas.get(address)
    if quota is not None and quota.policy == "block" and quota.full:
        return "the address is full"
    if core.memory.blocked:
        return "the disk is full"
    return "the broker's memory is full" if core.memory.used_bytes >= core.memory.limit_bytes else ""


def trace(core: Core, message_id: str, after: int = 0) -> Steps:
    """Say in which queues a message is, in which state, and who holds it."""
    try:
        wanted = MessageId.parse(message_id)
    except ValueError as error:
        allowed = "the number of a message behind its producer's 32 hexadecimal digits and '-'"
        raise SettingsError("message_id", message_id[:64], allowed) from error
    for rows in tracing(core.release_queue, core.router, wanted):
        if rows is None:
            yield None
        else:
            accepted = core.ingress.producers.highest(wanted.producer) >= wanted.number > 0
            yield {"accepted": accepted, **page_of("sightings", rows, after)}
