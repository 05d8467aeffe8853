"""The management operations that say where messages go, and where a message is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from meshq import limits
from meshq.address import Target, parse_place
from meshq.broker.access._access import may_look
from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._explainer import Explainer
from meshq.broker.ingress._filters_at import costly, filters_explained
from meshq.broker.ingress._sample_run import imagined
from meshq.broker.log._hop_log import Hop
from meshq.broker.management._pages import page_of
from meshq.broker.records._row_options import read_options
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
    explainer = Explainer(core.router, message, core.ingress.groups)
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
                about |= {"node_id": "", "node_name": ""}
                self.rows[address] = {"kind": "queue", "address": address, **about}
        rows.clear()


def _why_senders_wait(core: Core, address: str) -> str:
    quota = core.router.quotas.get(address)
    if quota is not None and quota.policy == "block" and quota.full:
        return "the address is full"
    if core.memory.blocked:
        return "the disk is full"
    return "the broker's memory is full" if core.memory.used_bytes >= core.memory.limit_bytes else ""


def explain_arrival(
    core: Core,
    address: str,
    name: str,
    properties: bytes | dict[str, Any] | None = None,
    headers: bytes | dict[str, Any] | None = None,
    durable: bool = True,
    priority: int = limits.PRIORITY_DEFAULT,
    after: int = 0,
) -> Values:
    """Explain the way of a message on this node that another node has dealt to a queue here."""
    message = imagined(parse_place(address).address, properties, headers, durable=durable, priority=priority)
    queue = core.router.queues.get(name)
    if queue is None:
        why = "no queue of that name is here: the message is routed anew by its address, or else dead-lettered"
        return {"exists": False, "why": why}
    if queue.paused:
        return {"exists": True, "why": "it waits here: the queue is paused"}
    group = read_options(message.content, 0)[0].group if message is not None else None
    if group is not None and not core.router.pins.may_offer(queue.address, queue.name, group):
        return {"exists": True, "why": "it waits here: this node is not the one on which its group is consumed"}
    consumers = queue.roster.consumers
    if not consumers:
        return {"exists": True, "why": "it waits here: nobody consumes from the queue"}
    if message is None:
        return {"exists": True, "why": f"one of {len(consumers)} consumers gets it, if its filter accepts the message"}
    wants = wants_of(message)
    taking = sum(one.filter is None or wants((one.filter,), 0) for one in consumers)
    if not taking:
        why = f"it waits here: no filter of its {len(consumers)} consumers accepts the message"
        return {"exists": True, "why": why}
    return {"exists": True, "why": f"{taking} of {len(consumers)} consumers take it, in turn"}


def trace_hops(core: Core, message_id: str, after: int = 0) -> Values:
    """A page of the nodes to which this node has given a message lately, or from which it has taken it."""
    rows: list[Values] = []
    for hop in core.router.demand.hops.find(_parsed(message_id)):
        names = dict.fromkeys([hop.name] if hop.name else _names_of(core, hop))
        rows.append({"way": "to" if hop.to else "from", "node_id": hop.node_id, "queues": "\n".join(names)})
    return {"forgotten": core.router.demand.hops.forgotten, **page_of("hops", rows, after)}


def _names_of(core: Core, hop: Hop) -> list[str]:
    """The queues that messages went to, or came to, as far as they are still known."""
    router = core.router
    if not hop.to:
        return [router.by_number[number].name for number in hop.numbers if number in router.by_number]
    known = core.definitions.peers.peers.get(hop.forward)
    names = {number: one.kept["name"] for number, one in known.queues.items()} if known is not None else {}
    names |= {one.number: one.name for one in router.remote(hop.forward.to_bytes(8, "big"))}
    return [names[number] for number in hop.numbers if number in names]


def trace(core: Core, message_id: str, after: int = 0) -> Steps:
    """Say in which queues a message is, in which state, and who holds it."""
    wanted = _parsed(message_id)
    for rows in tracing(core.release_queue, core.router, wanted):
        if rows is None:
            yield None
        else:
            accepted = core.ingress.producers.highest(wanted.producer) >= wanted.number > 0
            yield {"accepted": accepted, **page_of("sightings", rows, after)}


def _parsed(message_id: str) -> MessageId:
    """The id of a message.  Raises: SettingsError: it is none."""
    try:
        return MessageId.parse(message_id)
    except ValueError as error:
        allowed = "the number of a message behind its producer's 32 hexadecimal digits and '-'"
        raise SettingsError("message_id", message_id[:64], allowed) from error
