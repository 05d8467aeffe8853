"""The fanout machine: the decisions of a client that sends to several brokers.

The brokers that get a message, the moment at which a send may begin, and its end.  It only decides: no clock, no
network, no chance.  A broker is known by its place, and by its id once it has answered; two places of one broker are
one broker, and get a message once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import attrs

from meshq import limits
from meshq.client.link._fanout_life import new_life
from meshq.client.link._node_book_machine import bare
from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError, FanoutError, MeshqError, Outcome, UsageError, caused
from meshq.lifecycle import LifeCycle

#: Sends that a broker may owe an answer to; then further sends wait for that broker.
PENDING_MAX: Final = limits.PRODUCER_WINDOW_MESSAGES
#: Addresses of which the routing type is remembered for each broker.
ROUTINGS_MAX: Final = 1_024


@attrs.define(eq=False)
class FanoutBroker:
    """A broker of a fanout client, at one place."""

    place: Endpoint
    life: LifeCycle
    #: Empty until the broker has answered for the first time.
    node_id: bytes = b""
    node_name: str = ""
    #: Sends that are not answered.
    pending: int = 0
    #: Why there is no link; None: nothing is known to be wrong.
    error: MeshqError | None = None
    #: Address → routing type, as far as asked, in this session.
    routings: dict[str, str] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return str(bare(self.place))

    @property
    def connected(self) -> bool:
        """Whether there is a link to the broker, which gets messages."""
        return self.life.state == "connected"

    @property
    def hoped_for(self) -> bool:
        """Whether there is a link, or may be one later."""
        return self.life.state in ("connecting", "connected", "lost")


@attrs.frozen
class FanoutWait:
    """Wait for a change: too few brokers are connected, or one of them owes too many answers."""

    text: str


@attrs.frozen
class FanoutAsk:
    """Ask these brokers for the routing type of the address."""

    brokers: tuple[FanoutBroker, ...]


@attrs.frozen
class FanoutDraw:
    """Draw one of these brokers by chance, which gets all messages for queues from now on."""

    brokers: tuple[FanoutBroker, ...]


@attrs.frozen
class FanoutGo:
    """Send to ``targets``; done when ``needed`` have confirmed.  ``create``: those that lack the multicast address."""

    targets: tuple[FanoutBroker, ...]
    needed: int
    create: tuple[FanoutBroker, ...] = ()


FanoutStep = FanoutWait | FanoutAsk | FanoutDraw | FanoutGo


@attrs.frozen
class RoutingThere:
    """The routing type of an address at a broker, or the type that it would have; ``exists``: it is there."""

    routing: str
    exists: bool


class FanoutMachine:
    """The brokers of one fanout client.

    ``min_ack_count``, ``fan_out_queues``: the options of its URL.  ``fixed``: the brokers are listed, and no others can
    come.
    """

    def __init__(self, *, min_ack_count: int, fan_out_queues: bool, fixed: bool) -> None:
        self._needed = min_ack_count
        self._fan_out_queues = fan_out_queues
        self._fixed = fixed
        self._brokers: dict[Endpoint, FanoutBroker] = {}
        # To which messages for queues go; None: it is drawn.
        self._chosen: FanoutBroker | None = None

    @property
    def brokers(self) -> tuple[FanoutBroker, ...]:
        """All brokers, in the order in which they were listed."""
        return tuple(self._brokers.values())

    @property
    def connected(self) -> tuple[FanoutBroker, ...]:
        """The brokers to which there is a link, each once."""
        return tuple(one for one in self._brokers.values() if one.connected)

    @property
    def pending(self) -> int:
        """Sends that are not answered, counted for each broker."""
        return sum(one.pending for one in self._brokers.values())

    # -- brokers

    def listed(self, places: Iterable[Endpoint]) -> tuple[FanoutBroker, ...]:
        """Take the places that are known now; return the new ones.

        A place that is listed no more is left, unless there is a link to it or an answer is owed.
        """
        now = dict.fromkeys(places)
        for place, broker in tuple(self._brokers.items()):
            if place not in now and not broker.connected and not broker.pending:
                self.left(broker)
                del self._brokers[place]
        joined = tuple(FanoutBroker(place, new_life(str(bare(place)))) for place in now if place not in self._brokers)
        self._brokers.update((one.place, one) for one in joined)
        return joined

    def attached(self, broker: FanoutBroker, node_id: bytes, node_name: str) -> None:
        """Note a link to a broker.  A second link to the same broker is not used."""
        broker.node_id, broker.node_name, broker.error = node_id, node_name, None
        broker.routings.clear()
        others = [one for one in self.connected if one is not broker and one.node_id == node_id]
        broker.life.on("double" if node_id and others else "attach")

    def lost(self, broker: FanoutBroker, error: MeshqError) -> None:
        """Note that the link to a broker is lost, and why."""
        was = broker.connected
        broker.error = error
        broker.life.on("lose")
        if was:
            self._wake(broker)

    def failed(self, broker: FanoutBroker, error: MeshqError) -> None:
        """Note that the client may not try to reach a broker any more."""
        was = broker.connected
        broker.error = error
        broker.life.on("fail")
        if was:
            self._wake(broker)

    def left(self, broker: FanoutBroker) -> None:
        """Leave a broker."""
        was = broker.connected
        broker.life.on("leave")
        if was:
            self._wake(broker)

    def _wake(self, broker: FanoutBroker) -> None:
        """Try another place of a broker, whose link is gone."""
        for one in self._brokers.values():
            if one.life.state == "double" and one.node_id == broker.node_id:
                one.life.on("wake")

    # -- sends

    def step(self, address: str, asked: Mapping[FanoutBroker, RoutingThere]) -> FanoutStep:
        """Return the next step of a send to ``address``.

        ``asked``: the answers of brokers to this send.

        Raises:
            FanoutError: too few brokers are connected, and no others can be.
            UsageError: the brokers have the address with different routing types.
        """
        connected, wanted = self.connected, self._needed
        if len(connected) < wanted:
            hoped = sum(one.hoped_for for one in self._brokers.values())
            failed = any(one.life.state == "failed" for one in self._brokers.values())
            if hoped < wanted and (self._fixed or failed):
                raise self.too_few("no more brokers can be connected to")
            return FanoutWait(f"connected to {len(connected)} of the {wanted} brokers that are needed")
        unknown = tuple(one for one in connected if address not in one.routings and one not in asked)
        if unknown:
            return FanoutAsk(unknown)
        routing, lacking = self._routing(address, connected, asked)
        if routing == "multicast" or self._fan_out_queues:
            targets, needed = connected, wanted
        elif self._chosen is None or not self._chosen.connected:
            return FanoutDraw(connected)
        else:
            targets, needed = (self._chosen,), 1
        slow = next((one for one in targets if one.pending >= PENDING_MAX), None)
        if slow is not None:
            return FanoutWait(f"{slow} owes the answers to {PENDING_MAX} sends")
        create = tuple(one for one in targets if one in lacking) if routing == "multicast" else ()
        return FanoutGo(targets, needed, create)

    def choose(self, broker: FanoutBroker) -> None:
        """Take the broker that was drawn, which gets all messages for queues until its link is lost."""
        self._chosen = broker

    def note(self, broker: FanoutBroker, address: str, there: RoutingThere) -> None:
        """Remember the routing type of an address at a broker.  A type that may still change is asked for again."""
        if there.exists:
            if len(broker.routings) >= ROUTINGS_MAX:
                broker.routings.clear()
            broker.routings[address] = there.routing

    def _routing(
        self, address: str, connected: Sequence[FanoutBroker], asked: Mapping[FanoutBroker, RoutingThere]
    ) -> tuple[str, tuple[FanoutBroker, ...]]:
        """Return the routing type of an address, and the brokers that lack the address and would make another one.

        Brokers that have it decide; if none has it, what they would make of it.
        """
        would = {one: asked[one].routing for one in connected if one in asked and not asked[one].exists}
        have = {one: one.routings.get(address) or asked[one].routing for one in connected if one not in would}
        says = have or would
        routings = dict.fromkeys(says.values())
        if len(routings) > 1:
            told = ", ".join(f"{one}: {routing}" for one, routing in says.items())
            raise UsageError(f"{address!r} is not of one routing type at all brokers ({told}): create it alike")
        (routing,) = routings
        return routing, tuple(one for one, other in would.items() if other != routing)

    def too_few(self, why: str) -> FanoutError:
        """Make the error of a send that has not begun, because too few brokers are connected."""
        others = {str(one): self._reason(one) for one in self._brokers.values() if not one.connected}
        names = ", ".join(map(str, self.connected)) or "none"
        wanted = self._needed
        return FanoutError(
            f"connected to {names}, which are {len(self.connected)} of the {wanted} brokers that a send needs"
            f" (min_ack_count); {why}; not connected: {_told(others)}",
            outcome="not_done",
            errors=others,
        )

    def _reason(self, broker: FanoutBroker) -> MeshqError:
        if broker.life.state == "double":
            return UsageError(f"{broker} is another place of {broker.node_name}, to which there is a link")
        none_yet = ConnectionBrokenError("there is no connection yet", outcome="not_done")
        return broker.error or caused(none_yet, LookupError("no attempt to connect has ended"))


class FanoutAnswers:
    """The answers of brokers to one send.

    It is done when ``needed`` brokers have confirmed, and has failed when all have answered and too few confirmed: so
    the error says of each broker what became of the message there.
    """

    def __init__(self, address: str, targets: Sequence[FanoutBroker], needed: int) -> None:
        self._address = address
        self._needed = needed
        self._open = dict.fromkeys(targets)
        self._confirmed: list[str] = []
        self._errors: dict[str, MeshqError] = {}

    def answered(self, broker: FanoutBroker, error: MeshqError | None) -> None:
        """Take a broker's answer; None: it has confirmed."""
        del self._open[broker]
        if error is None:
            self._confirmed.append(str(broker))
        else:
            self._errors[str(broker)] = error

    @property
    def verdict(self) -> Literal["open", "done"] | FanoutError:
        """The state of the send: open, done, or its error.  An error is final, and so is "done"."""
        if len(self._confirmed) >= self._needed:
            return "done"
        if self._open:
            return "open"
        return self._failure()

    def missed(self) -> tuple[tuple[str, MeshqError], ...]:
        """Return the brokers that have failed though the send is done; each broker is returned once."""
        errors, self._errors = self._errors, {}
        return tuple(errors.items())

    def _failure(self) -> FanoutError:
        outcomes: set[Outcome] = {one.outcome for one in self._errors.values()}
        outcome: Outcome = "not_done" if not self._confirmed and outcomes == {"not_done"} else "unknown"
        names = ", ".join(self._confirmed) or "no broker"
        return FanoutError(
            f"{names} confirmed the message to {self._address!r}, where {self._needed} of the brokers have to;"
            f" not confirmed: {_told(self._errors)}",
            outcome=outcome,
            confirmed=self._confirmed,
            errors=self._errors,
        )


def _told(errors: Mapping[str, MeshqError]) -> str:
    return "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in errors.items()) or "none"
