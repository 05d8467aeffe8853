"""Where messages go that another node has sent to queues here, or to queues of further nodes.

What is for a queue that is gone is routed once more, by its address, and what no queue takes then is dead-lettered: it
is lost to nobody who asks for dead letters, and it is never dropped without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from meshq.address import TEMPORARY, Target
from meshq.broker.catalog._address_quota import AddressQuota
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.catalog._router import Address
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._distribution import deal, deal_here, shared
from meshq.broker.ingress._filter_scan_plan import placed
from meshq.broker.ingress._filters_at import forwarded_to, relayed_to
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.ingress._network_copies import from_node, note_had
from meshq.broker.queue._delivery_options import DeliveryOptions, QueueThere
from meshq.broker.queue._run import StoredRun
from meshq.errors import UsageError
from meshq.message import MessageOrigin
from meshq.notifications import MessageDeadLettered

#: Why messages whose queue is gone are dead letters.
UNROUTED: Final = "unrouted"
#: Messages as they are where dead letters go, and their shares.
Letters = tuple[StoredRun, list[Share]]


class ForwardedPlaces:
    """The places of messages that another node has sent to queues here."""

    def __init__(
        self,
        definitions: Definitions,
        address_here: Callable[[str], Address | None],
        event_bus: EventBus,
        memory: MemoryBound,
        *,
        drop: Callable[[AddressQuota, int], None],
    ) -> None:
        """``address_here`` finds an address, and makes it if it may; ``drop`` counts messages that a full address
        drops."""
        self._definitions = definitions
        self._router = definitions.router
        self._address_here = address_here
        self._event_bus = event_bus
        self._memory = memory
        self._drop = drop

    def shares(
        self, run: StoredRun, queues: Sequence[int], rows: range, *, topic: bool, there: QueueThere | None = None
    ) -> tuple[list[Share], list[int]]:
        """Return the shares of a run that was sent to queues here or of further nodes, and the rows that are dead
        letters.

        What is for a queue that is gone is routed once more, by its address: among the queues here, or, if there are
        none, among those of other nodes; and so is what a queue does not take, whose filter is another one than the
        other node has asked.  But not on a multicast address, where it was for that queue and no other one, and the
        others have theirs; nor is anything left of what was for the temporary queue of a session.
        ``there``: the one queue that all of it is for, made if need be.
        """
        if there is not None:
            return [Share(self._definitions.queue_there(run.address, there), rows, ())], []
        targets = forwarded_to(self._router, run.address, queues)
        relayed = relayed_to(self._router, run.address, queues)
        if relayed:
            # Not dealt again: the first node has named the queue.
            passed_on = [Share(forward, rows, numbers) for forward, numbers in relayed.items()]
            here = [share for queue in targets for share in deal(run, [queue], rows, anycast=True, next_index=0)]
            return here + passed_on, []
        if targets:
            found = [share for queue in targets for share in deal(run, [queue], rows, anycast=True, next_index=0)]
            known = self._router.addresses[run.address]
            rest = sorted({*rows} - {*placed(found)}) if known.routing == "anycast" and known.filtered else []
            if rest:
                found += deal_here(run, known, known.queues, rest)
            return found, sorted({*rest} - {*placed(found)})
        if topic and run.address not in self._router.addresses:
            # No queue is created for these: then it would not be a topic.
            return [], []
        address = self._address_here(run.address)
        if run.address.startswith(TEMPORARY) or (address is not None and address.routing == "multicast"):
            return [], []
        shares: list[Share] = []
        if address is not None and address.queues:
            shares = deal_here(run, address, address.queues, rows)
        elif address is not None:
            # The address exists because of other nodes, so no queue is created here on first use.
            shares = shared(run, address, None, rows)
        return shares, sorted({*rows} - {*placed(shares)})

    def not_had(self, run: StoredRun, shares: list[Share]) -> list[Share]:
        """Return the shares without copies that queues here have had through a network of brokers."""
        return from_node(run, self._router.addresses.get(run.address), shares)

    def bounded(self, run: StoredRun, shares: list[Share]) -> list[Share]:
        """Return the shares that the address of a run takes: if it is full and drops, only those for other nodes."""
        quota = self._router.quotas.get(run.address)
        if quota is None or quota.policy != "drop" or not (quota.full or self._memory.scarce):
            return shares
        passed_on = [share for share in shares if share.queue.address != run.address]
        dropped = len(placed(shares)) - len(placed(passed_on))
        if dropped:
            if quota.full:
                quota.reached()
            else:
                self._memory.reached(quota.policy)
            self._drop(quota, dropped)
        return passed_on

    def counted(self, run: StoredRun, shares: list[Share], then: Callable[[], None]) -> Callable[[], None]:
        """Count messages that were placed in the queues of a bounded address; return the function to call, instead of
        ``then``, when these are released.  Which queues have copies that came through a network is remembered."""
        note_had(run, self._router.addresses.get(run.address), shares)
        quota = self._router.quotas.get(run.address)
        here = [share for share in shares if share.queue.address == run.address] if quota is not None else []
        return quota.placed(len(placed(here)), then) if quota is not None and here else then

    def tell(self, run: StoredRun, messages: int, letters: Letters | None) -> None:
        """Tell of messages that became dead letters, or are gone because their address has no place for these."""
        target = letters[0].address if letters is not None else ""
        about = {"address": run.address, "queue": run.address, "target": target, "messages": messages}
        self._event_bus.emit(MessageDeadLettered, reason=UNROUTED, **about)

    def dead_letters(self, run: StoredRun, rows: Sequence[int]) -> Letters | None:
        """Return some messages as dead letters of their address, and their shares; None: nobody takes them.

        Raises:
            AddressFullError, JournalBrokenError: a queue for them can't be made; nothing changed.
        """
        name = self._router.settings(run.address).dead_letter_address
        if name is None or name == run.address:
            return None
        try:
            address, _ = self._definitions.address_of_moved(Target(name, None))
        except UsageError:
            return None
        if address.quota is not None and address.quota.policy == "drop" and address.quota.full:
            self._drop(address.quota, len(rows))
            return None
        letters = StoredRun(
            name,
            run.content,
            durable=run.durable,
            producer=run.producer,
            number=run.number,
            stamp=run.stamp,
            number_step=run.number_step,
        )
        letters.options = DeliveryOptions(0, origin=MessageOrigin(run.address, run.address, UNROUTED))
        letters.body = run.body
        shares = deal_here(letters, address, address.queues, rows)
        return (letters, shares) if shares else None
