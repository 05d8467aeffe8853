"""A drain: everything that a broker holds goes to another node, which is then its successor."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import attrs
import trio

from meshq.abc import TransferInventory
from meshq.cluster.leaving._departure import Departure, Successor
from meshq.cluster.leaving._drain_plan import (
    DRAIN_TRANSITIONS,
    DrainFacts,
    cursors_left,
    next_step,
    prepared_left,
    queues_lacking,
    sinks_left,
)
from meshq.cluster.leaving._target_search import PAUSE_S, DrainOrder, LeavingNode, TargetSearch
from meshq.concurrency import BackgroundBlock
from meshq.errors import AddressFullError, NotActiveError
from meshq.lifecycle import LifeCycle
from meshq.logs import logger
from meshq.loops import check_in_trio

#: Messages of one move.
STEP: Final = 256
_log = logger("cluster")


@attrs.frozen(kw_only=True)
class DrainProgress:
    """How far a drain is.

    ``state``: ``moving``, ``transferred``, ``looked`` (a dry run), ``cut`` or ``failed``.  ``target``: the id of the
    node that takes over.  ``moved``: messages that have left their queues so far, and ``bytes`` those of them as they
    are stored.  ``left``: messages that the other node does not have for sure yet, on their way or not; ``queues`` how
    many are in which queue; ``ids``: duplicate ids that it does not have; ``prepared``: prepared transactions of which
    a part has not left.
    """

    state: str
    target: str
    moved: int
    left: int
    queues: Mapping[str, int]
    bytes: int
    ids: int
    prepared: int


class Drain:
    """The drain of a broker, made by ``broker.drain`` and used as ``async with``; an async iterator of its progress.

    The iterator gives the newest ``DrainProgress`` whenever something has changed, and ends with the drain.
    """

    def __init__(self, name: str, node: LeavingNode, order: DrainOrder) -> None:
        self._name = name
        self._order = order
        self._search = TargetSearch(name, node, order)
        self._block = BackgroundBlock(f"the drain of {name!r}")
        self._life = LifeCycle(f"the drain of {name!r}", DRAIN_TRANSITIONS)
        self._departure: Departure
        self._target: Successor
        # All that hear of it, the departure among them.
        self._told: Sequence[Departure] = ()
        self._moved = 0
        # When something went, or had gone, last.
        self._changed_at = 0.0
        self._bytes = 0
        # Why something did not go in the last round, if this node's disk was full.
        self._full = ""
        self._left: TransferInventory | None = None
        # What the reader has seen, and how it learns of more.
        self._seen: DrainProgress | None = None
        self._news = trio.Event()
        self._over = trio.Event()
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Drain {self._name!r} {self._life.state} moved={self._moved}>"

    # -- what it knows

    @property
    def state(self) -> str:
        """``new``, ``moving``, ``transferred``, ``looked``, ``cut`` or ``failed``."""
        return self._life.state

    @property
    def moved(self) -> int:
        """Messages that have left their queues so far."""
        return self._moved

    @property
    def left(self) -> int:
        """Messages that the other node does not have for sure yet; 0 before the block is entered."""
        left = self._left
        return 0 if left is None else sum(left.messages.values()) + sum(left.forwarded.values())

    @property
    def queues(self) -> Mapping[str, int]:
        """How many messages are left in which queue."""
        return {} if self._left is None else self._left.messages

    @property
    def bytes(self) -> int:
        """The bytes of the messages that have left their queues, as they are stored."""
        return self._bytes

    @property
    def progress(self) -> DrainProgress:
        """All of it at this moment."""
        return DrainProgress(
            state=self.state,
            target=self._target.node_id.hex() if self._left is not None else "",
            moved=self.moved,
            left=self.left,
            queues=dict(self.queues),
            bytes=self.bytes,
            ids=sum(self._left.ids.values()) if self._left is not None else 0,
            prepared=self._left.prepared if self._left is not None else 0,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DrainProgress:
        """The newest progress, once it is another one than before.

        Checkpoint: always.
        Cancellation: nothing is lost.
        Raises:
            StopAsyncIteration: the drain has ended, and its last progress was given.
        """
        check_in_trio("Broker")
        await trio.lowlevel.checkpoint()
        while (now := self.progress) == self._seen:
            if self._over.is_set():
                raise StopAsyncIteration
            await self._news.wait()
        self._seen = now
        return now

    # -- the block

    async def __aenter__(self) -> Self:
        check_in_trio("Broker")
        await self._block.open(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Wait for the end of the drain; after an error or a cancellation cut it, without a wait."""
        if error is None:
            try:
                await self._over.wait()
            except BaseException as cancelled:
                await self._block.close(cancelled, self._cut)
                raise
        return await self._block.close(error, self._cut)

    async def _cut(self) -> None:
        self._scope.cancel()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        ended = True
        try:
            with self._scope:
                await self._drain(task_status)
                ended = False
        except Exception:
            self._life.on("fail")
            ended = False
            raise
        finally:
            if ended and self._life.state in ("new", "moving"):
                self._life.on("cut")
            self._over.set()
            self._tell()

    async def _drain(self, task_status: trio.TaskStatus[None]) -> None:
        await self._choose()
        departure = self._departure
        transfer = departure.broker.transfer
        if held := transfer.cursors():
            raise cursors_left(held)
        if sinks := transfer.sinks():
            raise sinks_left(sinks)
        if (xids := transfer.prepared()) and not transfer.takes_prepared(self._target.link):
            raise prepared_left(self._target.label, xids)
        if (names := transfer.lacking(self._target.link)) and not transfer.makes_queues(self._target.link):
            raise queues_lacking(self._target.label, names)
        self._changed_at = trio.current_time()
        self._left = transfer.inventory()
        if self._order.dry_run:
            self._life.on("look")
            self._search.release()
            task_status.started()
            return
        self._life.on("close")
        _log.info("%s hands over to %s", self._name, self._target.label, extra={"event": "drain_begins"})
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, departure)
                # Before the clients lose their sessions, so that they are told where to go.
                self._hand_over()
                await transfer.close()
                task_status.started()
                while not await self._step():
                    pass
                nursery.cancel_scope.cancel()
        finally:
            if self._life.state == "moving":
                self._break_off()
        _log.info("%s has handed all over to %s", self._name, self._target.label, extra={"event": "drained"})

    async def _watch(self, departure: Departure) -> None:
        await departure.ended.wait()
        text = f"the broker {self._name!r} ended in its drain: what has moved has moved, the rest is in its store"
        raise NotActiveError(text, outcome="unknown")

    async def _choose(self) -> None:
        """Choose the node that takes over, which has to be linked soon.

        Raises:
            NotFoundError: there is none.
            SettingsError: a URL that is to be dialed can't be.
        """
        found = await self._search.find()
        self._departure, self._target, self._told = found.departure, found.target, found.told

    def _hand_over(self) -> None:
        for departure in self._told:
            departure.hand_over_to(self._target)
        # Only now is it known which links were dialed in vain.
        self._search.release()

    def _break_off(self) -> None:
        for departure in self._told:
            departure.break_off()

    async def _step(self) -> bool:
        """Do a round and look; return whether the drain has ended."""
        transfer = self._departure.broker.transfer
        self._full = ""
        moved = await self._round()
        if self._full:
            text = f"the drain of {self._name} waits for the disk: {self._full}"
            self._departure.warn("drain_waits", text, self._name)
        before, self._left = self._left, transfer.inventory()
        now = trio.current_time()
        if moved or before != self._left:
            self._changed_at = now
        self._tell()
        known = {one.node_id: one for one in self._departure.successors()}
        self._target = known.get(self._target.node_id, self._target)
        facts = DrainFacts(
            left=self._left,
            lacking=transfer.lacking(self._target.link),
            xids=transfer.prepared(),
            taken=transfer.takes_prepared(self._target.link),
            label=self._target.label,
            target=self._target.state,
            leaving=self._target.leaving,
            ahead=self._target.link.waiting,
            moved=moved,
            idle_s=now - self._changed_at,
            patience_s=self._order.patience_s,
            unheard=[one for each in self._told for one in each.unheard()] if self._left.empty else (),
            full=self._full,
        )
        step = next_step(facts)
        if step == "choose":
            await self._departure.give_back(self._target)
            self._break_off()
            await self._choose()
            self._hand_over()
        elif step == "wait":
            await trio.sleep(PAUSE_S)
        elif step == "end":
            if facts.unheard:
                text = f"{self._name} has handed all over, and {', '.join(facts.unheard)} did not hear of it"
                self._departure.warn("drain_unheard", text, self._name)
            for departure in self._told:
                departure.handed_over_to(self._target)
            self._life.on("hand_over")
            self._tell()
        return step == "end"

    async def _round(self) -> int:
        transfer, link, moved = self._departure.broker.transfer, self._target.link, 0
        before = self._bytes - transfer.moved_bytes
        # What is sent there from now on finds them.
        moved += await self._tried(transfer.make_queues(link))
        # A message that a transaction holds goes only behind the transaction's beginning.
        for xid in transfer.prepared():
            moved += await self._tried(transfer.hand_over(xid, link))
        for queue in transfer.inventory().messages:
            now = await self._tried(transfer.move(queue, link, STEP))
            self._moved += now
            self._bytes = before + transfer.moved_bytes
            moved += now
        left = transfer.inventory()
        if not left.messages:
            # An id whose message is still here would make a duplicate of what is sent again.
            for address in left.ids:
                moved += await self._tried(transfer.move_ids(address, link))
        return moved

    async def _tried(self, step: Awaitable[int]) -> int:
        """Return the number that goes in a step; 0 if the disk has no room for it, which keeps nothing else back."""
        try:
            return await step
        except AddressFullError as error:
            self._full = self._full or str(error)
            return 0

    def _tell(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()
