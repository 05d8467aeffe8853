"""The recorder of a simulated test: all that its clients send, receive and settle, without their programs' knowing.

The problem.  Checkers judge a history, and the program under test keeps none.
The choice.  In a simulated test the calls of clients of trio are watched at the class, as sockets are refused there.  A
message is known by its body: bodies that are alike count as one message that was sent several times, which makes the
checkers milder and never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import trio

from meshq.abc import TermGuard
from meshq.address import SEPARATOR
from meshq.client import Client, Consumer, Producer, Transaction
from meshq.errors import MeshqError, UsageError
from meshq.message import Message
from meshq.testing._scheduler import LIFE
from meshq.testing.history._history import Delivery, History
from meshq.testing.history._node_facts import Act

#: A call inside a recorded call is a part of that one.
_INSIDE: Final[ContextVar[bool]] = ContextVar("meshq_recorded", default=False)
#: The parts of a ``Message`` and keywords of a send that a history has.
KEPT: Final = ("durable", "ttl", "delay", "duplicate_id")

#: The calls of a transaction that may end it.
ENDS: Final = ("commit", "prepare", "rollback", "__aexit__")
#: The call that sends several messages.
MANY: Final = Client.send_many


class Recorder:
    """The recorder of the clients of a simulated test.  ``clock`` gives the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.history: History = History(clock)
        #: Body of each message, by its number from 1.
        self.bodies: list[bytes] = []
        #: Messages of which no checker knows enough: their bodies were streamed.
        self.streamed: set[int] = set()
        #: Sends, by number, of which the client was at one node from begin to end; others may stand at several nodes.
        self.stayed: set[int] = set()
        #: Queues that are not judged, and why: messages expired or were dead-lettered, or a client has moved or removed
        #: some.
        self.lossy: dict[str, str] = {}
        #: Addresses from which an operator has moved messages.
        self.moved_from: dict[str, None] = {}
        #: Kinds of terms that are watched, and how each of them says whether a node may act.
        self.watched: dict[type[TermGuard], Callable[..., Any]] = {}
        self._numbers: dict[bytes, int] = {}
        # Delivery -> its number in the history; deliveries are kept, so that no other one has their identity.
        self._given: dict[int, tuple[object, int]] = {}
        self._names: dict[int, tuple[object, str]] = {}
        # Terms of nodes of pairs, which are kept for the same reason.
        self._terms: dict[int, tuple[object, int]] = {}

    def name_of(self, thing: object, kind: str) -> str:
        """Return the name of a client, a consumer, a task or a transaction, which is kept, so that no other has it."""
        return self._names.setdefault(id(thing), (thing, f"{kind} {len(self._names) + 1}"))[1]

    def number_of(self, body: bytes) -> int:
        """Return the number of a message with this body."""
        number = self._numbers.get(body)
        if number is None:
            self.bodies.append(body)
            number = self._numbers[body] = len(self.bodies)
        return number

    def watch_terms(self) -> None:
        """Watch the terms of all policies that are loaded by now: a policy loads its own when it is first used."""
        for kind in TermGuard.__subclasses__():
            if "may_act" in vars(kind) and kind not in self.watched:
                self.watched[kind] = vars(kind)["may_act"]
                setattr(kind, "may_act", _acting(self, self.watched[kind]))  # noqa: B010

    def unwatch_terms(self) -> None:
        """End that."""
        while self.watched:
            kind, real = self.watched.popitem()
            setattr(kind, "may_act", real)  # noqa: B010

    def acted(self, term: object) -> None:
        """A node that runs now acts in a term."""
        life, acts = LIFE.get(), self.history.final.nodes.acts
        if life is None:
            return
        number = self._terms.setdefault(id(term), (term, len(self._terms) + 1))[1]
        # The last act at this node id is looked for among few: a term acts at every turn, and another one seldom.
        if not acts or acts[-1].term != number:
            acts.append(Act(trio.current_time(), life.node, life.node, number))

    # -- what calls tell

    def begin(self, client: object, address: str, body: object, transaction: str = "", **facts: Any) -> int:
        """A send begins; returns the number of the operation."""
        given = {key: getattr(body, key) for key in KEPT} if isinstance(body, Message) else facts
        if isinstance(body, Message):
            body = body.body
        known = bytes(body) if isinstance(body, bytes | bytearray | memoryview) else None
        uid = self.number_of(b"a streamed body" if known is None else known)
        if known is None:
            self.streamed.add(uid)
        duplicate_id, ttl, delay = given.get("duplicate_id"), given.get("ttl"), given.get("delay")
        # Two tasks of one client have no order.
        task = trio.lowlevel.current_task()
        return self.history.sent(
            self.name_of(client, "client"),
            address,
            uid,
            producer=f"{self.name_of(client, 'client')} in {self.name_of(task, 'task')}",
            duplicate_id=duplicate_id.hex() if isinstance(duplicate_id, bytes) else duplicate_id,
            durable=given.get("durable", True) is not False,
            node=node_of_client(client),
            transaction=transaction,
            ttl_s=math.inf if ttl is None else ttl,
            delay_s=delay or 0.0,
        )

    def end(self, op: int, client: object, error: BaseException | None) -> None:
        """A send has ended."""
        if node_of_client(client) == self.history.sends[op].node:
            self.stayed.add(op)
        if error is None:
            self.history.send_ok(op)
        elif isinstance(error, MeshqError) and error.outcome is not None:
            self.history.send_failed(op, error.outcome)

    def received(self, consumer: Consumer, found: Sequence[Any]) -> None:
        """The program was handed messages by a consumer."""
        inbox = consumer._inbox
        if inbox.browse:
            return
        history = self.history
        for delivery in found:
            try:
                body = delivery.body
            except MeshqError:
                # A large one, which is read by and by.
                continue
            self._given[id(delivery)] = (delivery, len(history.deliveries))
            history.deliveries.append(
                Delivery(
                    number=len(history.deliveries),
                    client=self.name_of(consumer._context.sender, "client"),
                    consumer=self.name_of(consumer, "consumer"),
                    queue=consumer.queue,
                    uid=self.number_of(body),
                    sequence=delivery.sequence,
                    redelivered=delivery.redelivered,
                    delivery_count=delivery.delivery_count,
                    at_s=trio.current_time(),
                    stream=f"{self.name_of(consumer, 'consumer')}, session {inbox.epoch}",
                    # What stood in a client's buffer may have been dispatched long before.
                    since_s=-math.inf,
                    node=node_of_client(consumer._context.sender),
                    line=(delivery.priority, delivery.group),
                )
            )
        if inbox.auto:
            self.settled(found, "ack")

    def settled(self, deliveries: Sequence[Any], kind: str) -> list[int]:
        """Deliveries are settled; whether that is stored is not known yet.  Returns the operations."""
        numbers = [self._given[id(one)][1] for one in deliveries if id(one) in self._given]
        return [self.history.settling(numbers, kind)] if numbers else []


def node_of_client(client: Any) -> str:
    """Return the name of the node at which a client is."""
    connection = getattr(client, "_connection", None)
    return "" if connection is None else str(connection.node_name)


@contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Let ``recorder`` know of all that clients of this loop do inside this block."""
    calls: list[tuple[type, str, Callable[..., Any]]] = [
        (Client, "send", _sending(recorder, Client.send)),
        (Client, "send_many", _sending(recorder, Client.send_many)),
        (Client, "request", _sending(recorder, Client.request)),
        (Producer, "send", _pipelined(recorder, Producer.send)),
        (Transaction, "send", _in_transaction(recorder, Transaction.send)),
        *((Transaction, name, _ending(recorder, getattr(Transaction, name))) for name in ENDS),
        (Consumer, "ack", _settling(recorder, Consumer.ack, "ack")),
        (Consumer, "nack", _settling(recorder, Consumer.nack, "nack")),
        (Consumer, "reject", _settling(recorder, Consumer.reject, "reject")),
        (Consumer, "receive", _receiving(recorder, Consumer.receive)),
        (Consumer, "receive_many", _receiving(recorder, Consumer.receive_many)),
        (Transaction, "settle", _settling_in_transaction(recorder, Transaction.settle)),
        (Client, "move_messages", _moving(recorder, Client.move_messages)),
        (Client, "redrive", _moving(recorder, Client.redrive)),
        (Client, "purge_queue", _emptying(recorder, Client.purge_queue)),
        (Client, "delete_queue", _emptying(recorder, Client.delete_queue)),
    ]
    real = [(owner, name, getattr(owner, name)) for owner, name, _ in calls]
    try:
        for owner, name, function in calls:
            setattr(owner, name, function)
        yield
    finally:
        recorder.unwatch_terms()
        for owner, name, function in real:
            setattr(owner, name, function)


def _acting(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    def may_act(self: Any) -> Any:
        """Ask a term, and note that the node acts if it may."""
        allowed = real(self)
        if allowed:
            recorder.acted(self)
        return allowed

    return may_act


def queue_named(target: str) -> str:
    """Return the name of the queue of a target, as of ``orders::orders``; for an address alone, the address."""
    return target.rpartition(SEPARATOR)[2]


@contextmanager
def _changing(recorder: Recorder, why: str, *targets: object) -> Iterator[None]:
    """Leave queues out of the verdict, unless the call in this block surely did nothing."""
    names = [queue_named(target) for target in targets if isinstance(target, str)]
    new = [name for name in dict.fromkeys(names) if name not in recorder.lossy]
    recorder.lossy.update(dict.fromkeys(new, why))
    try:
        yield
    except MeshqError as error:
        if error.outcome == "not_done":
            for name in new:
                recorder.lossy.pop(name, None)
        raise


def _moving(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    async def move(self: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
        recorder.moved_from[queue_named(str(name))] = None
        with _changing(recorder, "moved", name, *arguments, keywords.get("address")):
            return await real(self, name, *arguments, **keywords)

    return move


def _emptying(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    async def empty(self: Any, name: str) -> Any:
        with _changing(recorder, "purged or deleted", name):
            return await real(self, name)

    return empty


def _sending(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, address: str, body: Any, **keywords: Any) -> Any:
        if _INSIDE.get():
            return await real(self, address, body, **keywords)
        if real is MANY:
            body = list(body)
        operations = [recorder.begin(self, address, one, **keywords) for one in (body if real is MANY else [body])]
        token = _INSIDE.set(True)
        error: BaseException | None = None
        try:
            return await real(self, address, body, **keywords)
        except BaseException as failure:
            error = failure
            raise
        finally:
            _INSIDE.reset(token)
            for op in operations:
                # Of several some may have come.
                if error is None or len(operations) == 1:
                    recorder.end(op, self, error)

    return send


def _pipelined(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, body: Any, **keywords: Any) -> None:
        """Record a send without an end: the confirm comes later."""
        if not _INSIDE.get():
            recorder.begin(self._context.sender, self.address, body, **keywords)
        token = _INSIDE.set(True)
        try:
            await real(self, body, **keywords)
        finally:
            _INSIDE.reset(token)

    return send


def _in_transaction(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, address: str, body: Any, **keywords: Any) -> None:
        op: int | None = None
        if not _INSIDE.get():
            name = recorder.name_of(self, "transaction")
            op = recorder.begin(self._context.sender, address, body, transaction=name, **keywords)
        token = _INSIDE.set(True)
        try:
            await real(self, address, body, **keywords)
        except BaseException as error:
            # A message that was not taken is no part of the commit; a cancelled call has taken none.
            if op is not None:
                taken = isinstance(error, MeshqError) and error.outcome != "not_done"
                recorder.history.send_failed(op, "unknown" if taken else "not_done")
            raise
        finally:
            _INSIDE.reset(token)

    return send


def _ending(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    async def end(self: Any, *arguments: Any) -> None:
        """Record the end of the sends of a transaction that this call has ended."""
        was_open = self.state in ("active", "prepared")
        error: BaseException | None = None
        try:
            await real(self, *arguments)
        except BaseException as failure:
            error = failure
            raise
        finally:
            if was_open:
                _end_sends(recorder, self, error)

    return end


def _end_sends(recorder: Recorder, transaction: Any, error: BaseException | None) -> None:
    """End the sends of a transaction that is committed, or that was rolled back for sure."""
    committed = transaction.state == "committed" and error is None
    sure = error is None or (isinstance(error, MeshqError) and error.outcome == "not_done")
    if not committed and not (transaction.state == "rolled back" and sure):
        return
    name = recorder.name_of(transaction, "transaction")
    for send in recorder.history.sends.values():
        if send.transaction == name and send.outcome is None:
            if committed:
                recorder.history.send_ok(send.op)
            else:
                recorder.history.send_failed(send.op, "not_done")


def _settling(recorder: Recorder, real: Callable[..., Any], kind: str) -> Callable[..., Any]:
    async def settle(self: Any, *deliveries: Any, **keywords: Any) -> None:
        operations = recorder.settled(deliveries, kind)
        try:
            await real(self, *deliveries, **keywords)
        except UsageError:
            for op in operations:
                recorder.history.settle_failed(op, "not_done")
            raise
        if keywords.get("confirm"):
            for op in operations:
                recorder.history.settle_ok(op)

    return settle


def _settling_in_transaction(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    def settle(self: Any, deliveries: Any) -> None:
        """Record acknowledgements that may be rolled back."""
        real(self, deliveries)
        recorder.settled(deliveries, "ack")

    return settle


def _receiving(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    async def receive(self: Any, *arguments: Any, **keywords: Any) -> Any:
        found = await real(self, *arguments, **keywords)
        if found is not None:
            recorder.received(self, found if isinstance(found, list) else [found])
        return found

    return receive
