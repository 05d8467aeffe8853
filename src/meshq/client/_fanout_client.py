"""The fanout client: sends to every broker that its URL yields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import attrs
import trio

from meshq.abc import Env
from meshq.address import parse_place
from meshq.client._client import Client
from meshq.client._fanout_link import FanoutLink
from meshq.client.admin._statistics import ClientStatistics
from meshq.client.link._connector import ClientTargets
from meshq.client.link._discovered_targets import DiscoveredTopology
from meshq.client.link._events import ConnectionBus, ConnectionEvent, EventSink, EventStream, FanoutMissed
from meshq.client.link._fanout_machine import (
    FanoutAnswers,
    FanoutAsk,
    FanoutBroker,
    FanoutDraw,
    FanoutGo,
    FanoutMachine,
    FanoutStep,
    FanoutWait,
    RoutingThere,
)
from meshq.client.link._node_book_machine import bare
from meshq.client.link._targets_plan import FixedTopology, LastFirst
from meshq.client.link._topology import TopologyNode
from meshq.client.settings._fanout_rules import FanoutRules
from meshq.client.settings._settings import ClientSettings
from meshq.concurrency import Block, ChangeSignal, Completion, copied_error, first_error
from meshq.errors import ClosedError, FanoutError, MeshqError, UsageError
from meshq.logs import Warnings
from meshq.loops import check_in_trio
from meshq.message import Message, check_durable, keywords_of

#: What a fanout client does as any client does; everything else concerns one broker, and is refused.
ALLOWED: Final = ("close", "events", "flush", "send", "send_many", "session", "statistics", "topology")
#: A broker is drawn with so many bytes by chance.
CHANCE_BYTES: Final = 8

_Call = Callable[[Client], Awaitable[None]]


@attrs.frozen(kw_only=True)
class FanoutPlaces:
    """Where a fanout client finds its brokers, and how it is made: its factory's part."""

    targets: ClientTargets
    rules: FanoutRules
    settings: ClientSettings
    env: Env


class FanoutClient:
    """A client that sends to every broker of its URL, ``fanout:(AGENT)``.  Made by ``connect`` or ``ClientFactory``.

    It has a connection to each broker, and sends what is for a multicast address to all of them.  A message for a
    queue goes to one broker, drawn by chance, or with ``fan_out_queues`` to all.  ``async with`` begins to connect and
    waits for nobody: a send waits until ``min_ack_count`` brokers are connected.
    Only ``send``, ``send_many``, ``flush``, ``session``, ``events``, ``statistics``, ``topology`` and ``close`` are
    there; every other call is a ``UsageError``.
    """

    def __init__(self, places: FanoutPlaces) -> None:
        self._places = places
        self._settings = places.settings
        self._env = places.env
        discovered = places.targets.discovered
        self._machine = FanoutMachine(
            min_ack_count=places.rules.min_ack_count,
            fan_out_queues=places.rules.fan_out_queues,
            fixed=discovered is None,
        )
        self._discovered = discovered
        self._block = Block("the client")
        self._links: dict[FanoutBroker, FanoutLink] = {}
        self._watchers = ConnectionBus()
        self._changed = ChangeSignal()
        # What the agent yields may have changed, or a link was lost.
        self._relisting = ChangeSignal()
        self._begun = Completion()
        self._warnings = Warnings("client", trio.current_time)
        self._nursery: Any = None
        self._tasks: trio.Nursery | None = None
        self._life = trio.CancelScope(shield=True)
        self._closing = False

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        """Return a function that refuses a call of ``Client`` which concerns one broker."""
        if name.startswith("_") or not hasattr(Client, name):
            raise AttributeError(f"a fanout client has no {name!r}", name=name, obj=self)

        def refuse(*_: object, **__: object) -> NoReturn:
            raise UsageError(
                f"{name} concerns one broker, and a fanout client sends to several; allowed: {', '.join(ALLOWED)};"
                f" for {name} connect to one of the brokers"
            )

        return refuse

    def __repr__(self) -> str:
        return f"<FanoutClient {self._state} brokers={', '.join(map(str, self._machine.connected)) or 'none'}>"

    @property
    def _state(self) -> str:
        if self._block.failure is not None:
            return "failed"
        if self._closing:
            return "closed"
        if not self._block.open:
            return "new"
        return "connected" if self._machine.connected else "reconnecting"

    def statistics(self) -> ClientStatistics:
        """Return the state of the client, and the sums of the counters of its connections.

        ``peer`` are the brokers to which there is a link; ids and numbers of a single session are empty.
        """
        each = [link.client.statistics() for link in self._links.values()]
        counters = ("connected", "resumed", "renewed", "producers", "waiting_runs", "kept_bytes", "unconfirmed")
        return ClientStatistics(
            state=self._state,
            peer=", ".join(map(str, self._machine.connected)),
            node_id=b"",
            node_name=", ".join(one.node_name for one in self._machine.connected),
            session=0,
            epoch=0,
            consumers=0,
            requests=0,
            late_answers=0,
            **{name: sum(getattr(one, name) for one in each) for name in counters},
        )

    def topology(self) -> tuple[TopologyNode, ...]:
        """Return the brokers to which there is a link, in the order in which they were found."""
        return tuple(
            TopologyNode(
                node_id=one.node_id.hex(), name=one.node_name, primary=str(bare(one.place)), backup="", distance=0
            )
            for one in self._machine.connected
        )

    # -- life

    async def __aenter__(self) -> Self:
        """Begin to connect to the brokers; waits for none of them.

        Checkpoint: always.  Cancellation: nothing is left.
        Raises:
            UsageError: it was used before.
            ClosedError: it was closed before.
        """
        check_in_trio("connect")
        self._block.claim()
        self._nursery = trio.open_nursery()
        nursery = await self._nursery.__aenter__()
        nursery.start_soon(self._live)
        try:
            await self._begun.wait()
        except BaseException:
            self._block.abandon()
            await self._end()
            raise
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close; see ``close``.

        Checkpoint: always.  Cancellation: it is closed all the same.
        """
        left = self._block.leave(error)
        try:
            await self._block.close_after(left, self.close)
        finally:
            await self._end()
        return self._block.conclude(error, left)

    async def _live(self) -> None:
        """The client's tasks; they leave no error and no cancellation behind."""
        try:
            with self._life:
                async with trio.open_nursery() as self._tasks:
                    self._relist()
                    self._begun.succeed()
                    if self._discovered is not None:
                        self._tasks.start_soon(self._discovered.run)
                        self._tasks.start_soon(self._hear, self._discovered)
                    while True:
                        await self._relisting.wait()
                        self._relist()
        except BaseExceptionGroup as group:
            # A defect of ours, or an interrupt that was delivered here.
            self._block.fail(first_error(group))
        finally:
            self._tasks = None
            self._watchers.close()
            self._changed.tell()

    async def _hear(self, discovered: DiscoveredTopology) -> None:
        while True:
            await discovered.changed()
            self._relisting.tell()

    def _relist(self) -> None:
        """Compare the list of brokers with the agent's now."""
        if self._closing or self._tasks is None:
            return
        targets, settings = self._places.targets, self._settings
        for broker in self._machine.listed(targets.topology.endpoints()):
            one = ClientTargets(
                topology=FixedTopology((broker.place,)), policy=LastFirst(), connector=targets.connector
            )
            link = FanoutLink(
                broker,
                self._machine,
                partial(Client, one, settings, self._env),
                watchers=self._watchers,
                changed=self._changed,
                lost=self._relisting,
            )
            self._links[broker] = link
            self._tasks.start_soon(link.run)
        for link in tuple(self._links.values()):
            if link.broker.life.state == "left":
                link.leave()
                del self._links[link.broker]

    async def _end(self) -> None:
        """End the tasks and the nursery around them."""
        self._closing = True
        self._life.cancel()
        self._watchers.close()
        manager, self._nursery = self._nursery, None
        if manager is not None:
            await manager.__aexit__(None, None, None)

    async def close(self) -> None:
        """Close the client: wait for the answers of all brokers.  A send that has not begun raises ``ClosedError``.

        Twice is silent.

        Checkpoint: always.  Cancellation: it is closed all the same; what was in line may be lost.
        """
        check_in_trio("connect")
        if self._closing:
            await trio.lowlevel.checkpoint()
            return
        self._closing = True
        self._block.close()
        self._changed.tell()
        try:
            await trio.lowlevel.checkpoint()
            await self._until(lambda: not self._machine.pending)
            for link in tuple(self._links.values()):
                link.leave()
            await self._until(lambda: all(link.ended for link in self._links.values()))
        finally:
            self._life.cancel()
            self._watchers.close()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while self._tasks is not None and not holds():
            await self._changed.wait()

    def session(self) -> FanoutClient:
        """Create another client of the same brokers, with the same settings."""
        return FanoutClient(self._places)

    def events(self) -> EventStream[ConnectionEvent]:
        """Return an async iterator of the events of all connections from now on; ``peer`` says of which broker."""
        stream: EventStream[ConnectionEvent] = EventStream()
        self._watch(stream)
        return stream

    def _watch(self, sink: EventSink[ConnectionEvent]) -> None:
        if self._closing or self._block.failure is not None:
            sink.close()
        else:
            self._watchers.watch(sink)

    # -- sending

    async def send(self, address: str, body: Any, **about: Any) -> None:
        """Send one message; on return ``min_ack_count`` brokers have stored it, or the one that has the queues.

        The other brokers of the moment get it, too; of one that fails later ``events()`` tells (``FanoutMissed``).
        Keywords are those of ``Client.send``.  ``body``: bytes, or a ``Message``; a stream can be read only once.

        Checkpoint: always.
        Cancellation: each broker may have got it or not.  Send again with the same duplicate id.
        Raises:
            SettingsError: a part of the message is not allowed; nothing was sent.
            UsageError: the brokers have the address with different routing types; nothing was sent.
            FanoutError: too few brokers are connected, or have confirmed; says which.
            ClosedError: the client is closed.
        """
        message = Message(body, **about) if not isinstance(body, Message) else _alone(body, about)
        await self._fan_out(address, lambda client: client.send(address, message))

    async def send_many(self, address: str, messages: Iterable[bytes | Message], *, durable: bool = True) -> None:
        """Send bodies or ``Message`` objects together, as ``send`` does.

        Checkpoint: always.
        Cancellation: each broker may have got each frame of them or not.
        Raises:
            SettingsError: a message is not allowed; nothing was sent.
            MeshqError: as ``send``; of each broker the error in ``errors`` lists what became of each message.
        """
        check_durable(durable)
        kept = [one if isinstance(one, Message) else Message(one, durable=durable) for one in messages]
        if not kept:
            await trio.lowlevel.checkpoint()
            return
        await self._fan_out(address, lambda client: client.send_many(address, kept))

    async def flush(self) -> None:
        """Wait until every broker has answered every send.

        Checkpoint: always.  Cancellation: it goes on its way.
        Raises:
            ClosedError: the client is closed.
        """
        self._check()
        await trio.lowlevel.checkpoint()
        await self._until(lambda: not self._machine.pending)

    def _check(self) -> None:
        failure = self._block.failure
        if failure is not None:
            raise copied_error(failure)
        if self._closing:
            raise ClosedError("the client is closed")
        if self._tasks is None:
            check_in_trio("connect")
            raise UsageError("the client is not open: use it in 'async with'")

    async def _fan_out(self, address: str, call: _Call) -> None:
        parse_place(address)
        self._check()
        go = await self._start(address)
        assert self._tasks is not None
        answers, verdict = FanoutAnswers(address, go.targets, go.needed), Completion()
        for broker in go.targets:
            broker.pending += 1
            send = partial(self._send_to, self._links[broker], address, call, create=broker in go.create)
            self._tasks.start_soon(self._answer, send, broker, address, answers, verdict)
        await verdict.wait()

    async def _start(self, address: str) -> FanoutGo:
        """Wait until a send may begin."""
        asked: dict[FanoutBroker, RoutingThere] = {}
        step: FanoutStep = FanoutWait("")
        patience = self._settings.call_failover_timeout
        with trio.move_on_after(patience):
            while True:
                self._check()
                step = self._machine.step(address, asked)
                if isinstance(step, FanoutGo):
                    return step
                if isinstance(step, FanoutDraw):
                    number = int.from_bytes(self._env.entropy.token(CHANCE_BYTES))
                    self._machine.choose(step.brokers[number % len(step.brokers)])
                elif isinstance(step, FanoutAsk):
                    await self._ask(address, step.brokers, asked)
                else:
                    asked.clear()
                    await self._changed.wait()
        text = step.text if isinstance(step, FanoutWait) else "a broker did not answer"
        raise self._machine.too_few(f"after {patience:g} s: {text}")

    async def _ask(
        self, address: str, brokers: Iterable[FanoutBroker], asked: dict[FanoutBroker, RoutingThere]
    ) -> None:
        """Ask brokers for the routing type of an address."""
        for broker in brokers:
            try:
                route = await self._links[broker].client.explain_route(address)
            except MeshqError as error:
                if broker.connected:
                    text = f"{broker} does not say of which routing type {address!r} is: {error}"
                    raise FanoutError(text, outcome="not_done", errors={str(broker): error}) from error
                # Its link was lost meanwhile: who is connected now is asked.
                asked.clear()
                return
            asked[broker] = there = RoutingThere(route.routing, route.exists)
            self._machine.note(broker, address, there)

    async def _send_to(self, link: FanoutLink, address: str, call: _Call, *, create: bool) -> None:
        if create:
            await link.client.create_address(parse_place(address).address, "multicast")
        await call(link.client)

    async def _answer(
        self,
        send: Callable[[], Awaitable[None]],
        broker: FanoutBroker,
        address: str,
        answers: FanoutAnswers,
        verdict: Completion,
    ) -> None:
        """Send to one broker, and tell the sender when that decides something."""
        error: MeshqError | None = None
        try:
            await send()
        except MeshqError as caught:
            error = caught
        broker.pending -= 1
        answers.answered(broker, error)
        says = answers.verdict
        if isinstance(says, FanoutError):
            verdict.fail(says)
        elif says == "done":
            for name, reason in answers.missed():
                self._missed(name, address, reason)
            verdict.succeed()
        self._changed.tell()

    def _missed(self, name: str, address: str, reason: MeshqError) -> None:
        """Tell that a broker lacks a message that enough others have."""
        text = f"FanoutMissed: {name} has not confirmed a message to {address!r}: {reason}"
        self._warnings.say("fanout_missed", text, name)
        self._watchers.happened(FanoutMissed(at=trio.current_time(), peer=name, address=address, reason=reason))


def _alone(message: Message, about: dict[str, Any]) -> Message:
    """Return the message of a send, beside which no keyword goes."""
    plain = Message(b"", **about)
    keywords_of(message, *(getattr(plain, name) for name in attrs.fields_dict(Message) if name != "body"))
    return message
