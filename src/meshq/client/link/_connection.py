"""The task that keeps a client connected: dials, watches over the link, and comes back when it is lost."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Final, Protocol

import trio

from meshq import limits
from meshq.client.link._backlog_writer import BacklogWriter
from meshq.client.link._change_log import ChangeLog
from meshq.client.link._connector import ClientTargets
from meshq.client.link._events import (
    Connected,
    ConnectionEvent,
    Disconnected,
    FailedOver,
    Reattached,
    Redirected,
)
from meshq.client.link._failover_machine import FailoverMachine
from meshq.client.link._handshake import Handshake
from meshq.client.link._link_end import LinkEnd, closed_by
from meshq.client.link._link_life import new_life
from meshq.client.link._login import Login
from meshq.client.link._node_book_machine import bare
from meshq.client.link._redirects import Redirects
from meshq.client.link._topology import ScaledDown, node_of, sent_to
from meshq.client.session._session import ClientSession
from meshq.client.settings._settings import ClientSettings
from meshq.concurrency import Completion, copied_error, first_error
from meshq.endpoint import Endpoint
from meshq.errors import (
    CallTimeoutError,
    ConnectionBrokenError,
    MeshqError,
    NotActiveError,
    Outcome,
    RemoteProtocolError,
    SecurityError,
    SettingsError,
    UseAnotherServerError,
    caused,
)
from meshq.wire import (
    TOPOLOGY,
    Attached,
    Close,
    Frame,
    FrameType,
    Link,
    Probed,
    StreamLink,
    Welcome,
    error_of,
    refusal_of,
    violation,
)

#: Seconds that the node may take to end a link that was closed in peace.
CLOSING_S: Final = 5.0


class LinkWatcher(Protocol):
    """The watcher of a connection: hears its events, and of every node that is gone."""

    def happened(self, event: ConnectionEvent) -> None:
        """Take an event of the connection."""

    def parted(self, how: str, error: MeshqError) -> None:
        """Note that the node is gone, "left" or "away", and why; called again after each failed attempt to connect."""


class LinkCounts:
    """The counters of one client's connection."""

    __slots__ = ("connected", "renewed", "resumed")

    def __init__(self) -> None:
        #: Links made.
        self.connected = 0
        #: Sessions resumed, and sessions made anew.
        self.resumed = 0
        self.renewed = 0


class Connection:
    """The connection of one client, which makes one link after another."""

    def __init__(
        self,
        session: ClientSession,
        targets: ClientTargets,
        settings: ClientSettings,
        label: str,
        login: Login,
        *,
        watcher: LinkWatcher,
        log: ChangeLog | None = None,
    ) -> None:
        self._session = session
        self._targets = targets
        self._settings = settings
        self._handshake = partial(Handshake, session=session, label=label, login=login, owner=self)
        self._machine = FailoverMachine(
            targets.policy,
            initial_attempts=settings.initial_connect_attempts,
            attempts=settings.reconnect_attempts,
            interval_s=settings.retry_interval,
            factor=settings.retry_interval_multiplier,
            interval_s_max=settings.max_retry_interval,
        )
        #: Decided when there has been a first link, or none could be made.
        self.first = Completion()
        self._watcher = watcher
        #: The node at the other end, or the last one.
        self.node_name = ""
        self.peer = ""
        self.counts = LinkCounts()
        self._log = log or ChangeLog()
        # The node that is being dialed, or was dialed last.
        self._target: Endpoint | None = None
        self._redirects = Redirects(session.facts)
        self._link: Link | None = None
        self._ended = Completion()
        # Decided when the link that we have is closed.
        self._gone = Completion()
        self._node_id = b""
        self._dialing: trio.CancelScope | None = None
        self._pausing: trio.CancelScope | None = None
        self._life: Final = new_life()

    # -- connecting

    async def run(self) -> MeshqError | None:
        """Keep connected; returns why it can't be, or None when closed.

        Checkpoint: always.  Cancellation: the link is closed; the session stays as it is.
        """
        try:
            return await self._keep_connected()
        finally:
            self._life.on("end")

    async def _keep_connected(self) -> MeshqError | None:
        life = self._life
        error: MeshqError | None = None
        while life.state != "closing":
            known = self._targets.known(self._machine.last, self._session.facts.target)
            dial = self._machine.next(self._redirects.first(known))
            if dial is None:
                exhausted = _exhausted(error, "unknown" if self.counts.connected else "not_done")
                if self.counts.connected and self._settings.reconnect_attempts:
                    self._lost(exhausted, final=True)
                return exhausted
            self._target = dial.target
            if dial.delay_s:
                life.on("wait")
                with trio.CancelScope() as self._pausing:
                    await trio.sleep(dial.delay_s)
                self._pausing = None
            life.on("dial")
            ended = await self._attempt(dial.target)
            if life.state == "closing":
                return None
            error = ended.error
            attached = life.state == "attached"
            life.on("lose")
            if ended.held:
                self._machine.hold()
            self._session.link_failures.ended(error, attached=attached)
            # Where a balancer has sent it the client may be wrong; at a place of its own, next time, it may not be.
            sent = self._redirects.redirected
            fatal = ended.fatal and (attached or not (sent or self._targets.refused(dial.target, error)))
            final = fatal or (attached and not self._settings.reconnect_attempts)
            if attached:
                self.begun()
                self._machine.lost(trio.current_time(), leave=ended.leave)
                resumable = self._session.stream.resumable and not ended.leave
                self._redirects.lost(self._target, resumable=resumable)
                self._lost(error, final=final)
            else:
                self._targets.failed(self._target)
                if fatal and self.counts.connected:
                    # Of the loss before it was said only that the client tries.
                    self._lost(error, final=True)
            parted = ended.parted or ("" if attached else "away")
            if parted:
                self._watcher.parted(parted, error)
            if fatal:
                return error
        return None

    def connect_now(self) -> None:
        """Connect now instead of later, because the node is known to be alive."""
        if self._pausing is not None:
            self._pausing.cancel()

    @property
    def redirected(self) -> bool:
        """Whether a balancer has sent the client where it is."""
        return self._redirects.redirected

    async def _attempt(self, endpoint: Endpoint | None) -> LinkEnd:
        """Make one link, where a node sends the client on at that place, and serve it to its end."""
        self._redirects.begin(endpoint)
        ended = await self._once(endpoint)
        while ended.onward is not None and self._life.state != "closing":
            self._life.on("redirect")
            self._target = ended.onward
            ended = await self._once(ended.onward)
        return ended

    async def _once(self, endpoint: Endpoint | None) -> LinkEnd:
        """Make one link, and serve it to its end."""
        if endpoint is None:
            await trio.lowlevel.checkpoint()
            unknown = ConnectionBrokenError(self._targets.why_none(), outcome="not_done")
            return LinkEnd(caused(unknown, LookupError("the list of targets is empty")))
        try:
            target = self._targets.connector(endpoint)
        except SettingsError as error:
            # Only a topology that changes names targets that were not checked before; the others may do.
            await trio.lowlevel.checkpoint()
            return LinkEnd(error, leave=True)
        patience = min(self._settings.call_timeout, self._settings.connection_ttl)
        with trio.CancelScope(deadline=trio.current_time() + patience) as self._dialing:
            await trio.lowlevel.checkpoint()
            try:
                link = await target.open()
            except (ConnectionBrokenError, NotActiveError) as error:
                return LinkEnd(error, leave=True)
            except (RemoteProtocolError, SecurityError, SettingsError) as error:
                return LinkEnd(error, fatal=True)
            return await self._serve(link)
        late = CallTimeoutError(f"{target} did not answer in time", outcome="not_done")
        return LinkEnd(caused(late, TimeoutError(f"waited {patience:g} s for a connection")), leave=True)

    async def _serve(self, link: Link) -> LinkEnd:
        """Shake hands on a link, and see it through."""
        self._life.on("open")
        self._link = link
        self._ended, self._gone = Completion(), Completion()
        self.peer = link.peer
        try:
            writer = BacklogWriter()
            self._handshake(link, writer=writer).start()
            if isinstance(link, StreamLink):
                await self._attend(link, writer)
            ended: LinkEnd = await self._ended.wait()
            return ended
        finally:
            self._session.detach()
            self._link = None
            link.close()
            self._gone.succeed()

    async def _attend(self, link: StreamLink, writer: BacklogWriter) -> None:
        """Read a byte stream until the link has ended, and write the unsent bytes."""
        try:
            async with trio.open_nursery() as nursery:
                writer.begin(link.stream, nursery)
                nursery.start_soon(self._read, link)
                try:
                    await self._ended.wait_done()
                finally:
                    # Others may send until the session knows; a nursery that closes takes no new task.
                    writer.end()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            only = first_error(group)
            raise only from only.__cause__

    async def _read(self, link: StreamLink) -> None:
        try:
            while True:
                data = await link.stream.receive(limits.RECEIVE_BYTES)
                if not data:
                    break
                # A part of a large frame is a sign of life, too.
                self._session.stream.heard_at = trio.current_time()
                link.feed(data)
                if self._ended.done and self._life.state != "closing":
                    return
            self.broke_off()
        except ConnectionBrokenError as error:
            self._end(LinkEnd(error))
        except SecurityError as error:
            # Under TLS the node may say only now that it does not believe us.
            self._end(LinkEnd(error, fatal=True))
        except RemoteProtocolError as error:
            self.peer_violated(error)

    # -- what happens on a link

    def _end(self, ended: LinkEnd) -> None:
        self._ended.succeed(ended)

    def broke_off(self) -> None:
        """End the link, which the other side has ended without a word."""
        error = ConnectionBrokenError(f"the connection to {self.peer} was ended by the other side")
        self._end(LinkEnd(caused(error, EOFError("the stream has ended, without a word"))))

    def give_up(self, error: MeshqError) -> None:
        """End the link and its session, because the node leaves a call unanswered."""
        self._end(LinkEnd(error, parted="away"))

    def peer_violated(self, error: MeshqError) -> None:
        """End the client: the node violates the protocol, or is not believed."""
        link = self._link
        if link is not None:
            code = refusal_of(error).number
            link.send(Frame(FrameType.CLOSE, header=Close(code=code, text=str(error)[:1024]).encode()))
            self._session.detach()
            link.close()
        self._end(LinkEnd(error, fatal=True))

    def peer_closed(self, close: Close) -> None:
        """End the link, which the node closes."""
        ended = closed_by(self.peer, close)
        if close.target_place and ended.error.refusal == "use_another_server" and self._life.state == "handshake":
            ended = self._sent_on(close)
        elif close.target:
            self._sent_away(close)
        self._session.detach()
        self._end(ended)

    def unwanted(self) -> None:
        """End the attempt: the node to which the client was sent has its session no more."""
        error = ConnectionBrokenError(f"{self.peer} has the session no more", outcome="not_done")
        self._end(LinkEnd(caused(error, LookupError("the session is not there")), leave=True))

    def probed(self, welcome: Welcome | None, probed: Probed) -> None:
        """End the client, because the node answers a probe that was not sent."""
        self.peer_violated(violation("illegal_frame", "PROBED where a session was asked for"))

    def _sent_on(self, close: Close) -> LinkEnd:
        """Find the place to which the balancer of a node sends the client."""
        assert self._target is not None
        try:
            onward = self._redirects.follow(self._target, close)
        except UseAnotherServerError as error:
            return LinkEnd(error, leave=True)
        now = trio.current_time()
        self._log.say(logging.INFO, "client_redirected", f"Redirected: {self.peer} sends it to {onward}", now)
        self._watcher.happened(Redirected(at=now, peer=self.peer, url=str(bare(onward))))
        return LinkEnd(error_of(close.code, close.text), leave=True, onward=onward)

    def _sent_away(self, close: Close) -> None:
        """Note the node to which the client has to go, because its own one leaves for good."""
        target, now = sent_to(close), trio.current_time()
        self._redirects.sent_away(close.node_id)
        if not self._session.facts.sent_away(close, target):
            return
        where = f"node {target.name} at {target.place or 'no place that can be dialed'}"
        self._log.say(logging.INFO, "client_scaled_down", f"ScaledDown: {self.peer} hands over to {where}", now)
        self._watcher.happened(ScaledDown(at=now, peer=self.peer, target=node_of(target)))

    def attached(self, welcome: Welcome, attached: Attached) -> None:
        """Note that the session is attached to the link."""
        self._life.on("attach")
        now = trio.current_time()
        if self._dialing is not None:
            self._dialing.deadline = math.inf
        assert self._target is not None
        self._machine.attached(self._target, now)
        self._targets.attached(self._target, welcome.node_id)
        self.counts.connected += 1
        same_node = welcome.node_id == self._node_id
        self._node_id, self.node_name = welcome.node_id, welcome.node_name
        made: type[Connected] | type[Reattached] | partial[FailedOver] = Connected
        if attached.resumed:
            self.counts.resumed += 1
            made = Reattached
        elif self.counts.connected > 1:
            self.counts.renewed += 1
            made = partial(FailedOver, same_node=same_node)
        event = made(at=now, peer=self.peer, node_id=welcome.node_id, node_name=welcome.node_name)
        kind = type(event).__name__
        text = f"{kind}: {self.peer}, node {welcome.node_name}"
        self._log.say(logging.INFO, f"client_{kind.lower()}", text, now)
        if not (TOPOLOGY in welcome.features and self._targets.uninformed):
            self.begun()
        # Else the node tells at once who else is there, so that the next connection of the factory can go elsewhere.
        self._watcher.happened(event)

    def begun(self) -> None:
        """Note that the first link can be used."""
        self.first.succeed(self._session.facts.epoch)

    def _lost(self, error: MeshqError, *, final: bool) -> None:
        # A node that has reached itself by another name leaves it at that: nothing is wrong.
        level = logging.WARNING if final and error.refusal != "same_node" else logging.INFO
        whom = f"{self.peer}, node {self.node_name}" if self.node_name else self.peer
        self._log.say(level, "client_disconnected", f"Disconnected: {whom} ({error})", trio.current_time())
        self._watcher.happened(
            Disconnected(at=trio.current_time(), peer=self.peer, reason=copied_error(error), final=final)
        )

    # -- time

    async def keep_time(self) -> None:
        """Keep time: end overdue waits, send pings, and close a silent link.

        Checkpoint: always.  Cancellation: time is kept no longer.
        """
        session = self._session
        while True:
            now = trio.current_time()
            soonest = min(session.end_overdue(now), self._watch(now))
            if soonest < math.inf:
                soonest = min(soonest, now + self._settings.check_period)
            passed = await session.deadlines.sleep(soonest)
            # While this process stood still no frame was read: frames of that time wait to be read.
            now = trio.current_time()
            session.stream.heard_at = min(session.stream.heard_at + now - passed, now)

    def _watch(self, now: float) -> float:
        session, link = self._session, self._link
        stream = session.stream
        if link is None or stream.link is not link or link.lossless or math.isinf(session.ttl):
            return math.inf
        silent_at = stream.heard_at + session.ttl
        if silent_at <= now:
            silence = ConnectionBrokenError(f"nothing was heard of {self.peer} for {session.ttl} s")
            waited = TimeoutError(f"waited {session.ttl:g} s for a sign of life")
            self._end(LinkEnd(caused(silence, waited), parted="away"))
            return math.inf
        # Who only says something, and is told nothing, has to ask, too.
        ping_at = min(stream.flushed_at, max(stream.heard_at, stream.asked_at)) + session.ttl / 3
        if ping_at <= now:
            session.ping()
            ping_at = now + session.ttl / 3
        return min(silent_at, ping_at)

    # -- the end

    @property
    def closing(self) -> bool:
        """Whether ``close`` was called, and the link has not ended."""
        return self._life.state == "closing"

    async def close(self) -> None:
        """Close the session cleanly: send all queued frames, then wait until the node ends the link.

        Checkpoint: always.  Cancellation: the link is closed at once.
        """
        self._life.on("close")
        session, stream, link = self._session, self._session.stream, self._link
        if link is not None and stream.link is link:
            stream.send_settles()
            link.send(Frame(FrameType.CLOSE, header=Close().encode(), received=stream.incoming.last))
            session.detach()
            link.flush()
            with trio.move_on_after(CLOSING_S):
                await self._gone.wait_done()
        await trio.lowlevel.checkpoint()


def _exhausted(error: MeshqError | None, outcome: Outcome) -> MeshqError:
    if isinstance(error, UseAnotherServerError) and outcome == "not_done":
        # The broker was reached, and says what to do.
        return error
    text = f"all attempts to connect are used up; the last one: {error}"
    return caused(ConnectionBrokenError(text, outcome=outcome), error)
