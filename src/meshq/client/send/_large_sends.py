"""Sending a large message: its body goes first, block by block, and then the message itself, which names it.

Nothing is placed before the message has come, so whatever breaks before that is not done.  When the session is made
anew in the middle, the body is sent again from its beginning, if its source can be begun again.  A message that was
sent and not confirmed is sent again without its body: that asks only whether it was stored.  If it was not, the body
is sent again.
"""

from __future__ import annotations

from collections import deque

from meshq import limits
from meshq.address import parse_place
from meshq.client.calls._calls import Call
from meshq.client.calls._link_failures import body_lost, outcome_of
from meshq.client.outgoing._outbox import OutgoingRun
from meshq.client.send._body_sources import PieceSource, SourceBlocks
from meshq.client.send._envelope import Row
from meshq.client.send._implicit_producers import ImplicitProducers
from meshq.client.session._client_context import ClientContext
from meshq.client.session._session import ClientSession
from meshq.errors import MeshqError, NotActiveError, UnblockedError
from meshq.wire import FLAG_DURABLE, FLAG_LAST, Frame, FrameType, encode_one


class _UploadAttempt:
    """A try to send a body."""

    def __init__(self, session: ClientSession, *, durable: bool) -> None:
        self._session = session
        self._durable = durable
        self._epoch = session.facts.epoch
        self._channel = 0
        # The broker has heard of it, or will.
        self._begun = False
        self._calls: deque[Call] = deque()
        # The message that names it.
        self._run: OutgoingRun | None = None

    async def send(self, blocks: SourceBlocks) -> tuple[int, int]:
        """Send all blocks; returns the channel and the epoch by which the message names them, once they are stored."""
        last = False
        while not last:
            block, last = await blocks.next()
            self._put(block, last=last)
            while len(self._calls) >= limits.LARGE_WINDOW_BLOCKS:
                await self._answer()
        while self._calls:
            await self._answer()
        return self._channel, self._epoch

    def _put(self, block: bytes, *, last: bool) -> None:
        def make(number: int) -> Frame:
            self._begun = True
            flags = (FLAG_DURABLE if self._durable else 0) | (FLAG_LAST if last else 0)
            return Frame(FrameType.BLOCK, flags=flags, channel=self._channel, first=number, body=block)

        session = self._session
        session.facts.check()
        if self._epoch != session.facts.epoch:
            raise body_lost(session.link_failures)
        if not self._channel:
            # Here and not when it is sent: what opens a channel later, and has its number, is sent later, too.
            self._channel = session.channels.new(None)
        # A new session has none of the body's blocks.
        call = Call("sending a body", make, unfit=lambda sent: body_lost(session.link_failures))
        self._calls.append(call)
        session.pending_calls.add(call)
        session.stream.flush()

    async def _answer(self) -> None:
        await self._session.deadlines.wait(self._calls[0])
        self._calls.popleft()

    def named(self, run: OutgoingRun) -> None:
        """Note that the message that names the body was queued."""
        self._run = run

    def leave(self) -> None:
        """Unless a message that was sent has named the body, the broker need not keep it."""
        for call in self._calls:
            call.abandon()
        session = self._session
        named = self._run is not None and not self._run.unsent
        if self._begun and not named and self._epoch == session.facts.epoch and session.facts.failure is None:
            session.channels.leave(self._channel, 0)
            session.stream.wake()


class LargeSends:
    """The sends of one client whose bodies go block by block."""

    __slots__ = ("_context", "_producers")

    def __init__(self, context: ClientContext, producers: ImplicitProducers) -> None:
        self._context = context
        self._producers = producers

    async def send(self, address: str, source: PieceSource, envelope: Row, *, durable: bool) -> OutgoingRun | None:
        """Send a message whose body may be large; it is confirmed on return.

        Returns a run to be sent in the ordinary way if the body turns out to be small.

        Checkpoint: always.
        Cancellation: the message may have been sent or not; if it was not, its body is dropped.
        Raises:
            SettingsError: a piece of the body is no bytes; not done.
            UnblockedError: the session was lost, and the body can't be sent again; see ``outcome``.
            MeshqError: as ``client.send``.
        """
        try:
            return await self._until_stored(address, source, envelope, durable=durable)
        finally:
            await source.close()

    async def _until_stored(
        self, address: str, source: PieceSource, envelope: Row, *, durable: bool
    ) -> OutgoingRun | None:
        context, session = self._context, self._context.session
        while True:
            cut_off: BaseException | None = None
            blocks = SourceBlocks(source)
            body = await blocks.first(context.settings.min_large_message_size + 1)
            if body is not None:
                return OutgoingRun(encode_one(body, envelope), durable, context.now_ms())
            try:
                await self._in_turn(address, blocks, envelope, durable=durable)
            except NotActiveError as error:
                cut_off = error
                # The node is going away: what comes next is another session.
                await session.renewal("a send")
            except UnblockedError as error:
                if error.refusal != "body_missing" or not context.settings.resend:
                    raise
                cut_off = error.__cause__
            else:
                return None
            if not await source.restart():
                text = (
                    "a send was cut off by the loss of its session, and its body can't be read from the beginning again"
                )
                raise UnblockedError(text, outcome="not_done") from (cut_off or session.link_failures.lost)

    async def _in_turn(self, address: str, blocks: SourceBlocks, envelope: Row, *, durable: bool) -> None:
        """Send a body when a slot is free: the broker takes a limited number of bodies of a session at a time."""
        # Who asks for what is not allowed is told at once.
        parse_place(address)
        self._context.check()
        session = self._context.session
        slot = session.upload_slots.acquire("a send", session.now())
        try:
            if not slot.acquired:
                await session.deadlines.wait(slot)
            await self._once(address, blocks, envelope, durable=durable)
        finally:
            session.upload_slots.release(slot)

    async def _once(self, address: str, blocks: SourceBlocks, envelope: Row, *, durable: bool) -> None:
        session = self._context.session
        outbox = self._producers.to(address)
        upload = _UploadAttempt(session, durable=durable)
        try:
            try:
                where = await upload.send(blocks)
            except MeshqError as error:
                # Nothing is placed before the message itself has come.  Of a producer that was refused no body is
                # taken.
                told = outcome_of(outbox.failed or error, "not_done")
                raise told from told.__cause__
            run = OutgoingRun(encode_one(b"", envelope), durable, self._context.now_ms())
            run.upload = where
            upload.named(run)
            # Sends to many other addresses may have closed the first producer meanwhile.
            session.send_queue.submit(self._producers.to(address), run)
            session.stream.flush()
            if not run.done:
                await session.send_queue.wait(run)
            run.result()
        finally:
            upload.leave()
