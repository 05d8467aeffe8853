"""A node's part in replication where a quorum provider decides which node serves."""

from __future__ import annotations

import errno
import math
from typing import Any, Final

import attrs
import trio

from meshq.abc import Activation, ActiveTerm, NodeControl, QuorumProvider, QuorumRecord, StepBack
from meshq.errors import ConnectionBrokenError, MeshqError, RefusedError, SettingsError, caused, invariant
from meshq.ha._host_questions import any_answers
from meshq.ha._hosts_plan import Isolation
from meshq.ha._store_claim_plan import ended_mark
from meshq.ha.quorum import NoClaim, node_id_of
from meshq.ha.replication._follower import Follower
from meshq.ha.replication._quorum_role import QuorumRole
from meshq.ha.replication._reach import Reach
from meshq.ha.replication._replication_activation import POOL, ReplicationPart
from meshq.ha.replication._replication_rules import ReplicationRules
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.replication.meeting._standpoints import is_stranger
from meshq.ids import IDENTITY_BYTES
from meshq.wire import Log, Replicate

#: Seconds before the second try to get the lock, once the node is followed no more that had it; later ones come later.
QUICK_S: Final = 0.02
#: Why a node that was followed is not followed any more, if it has said so.
GIVEN_UP: Final = ("stopped", "forced", "failback")
#: The longest time for which a primary that did not take the role is not given it again.
PAUSE_S_MAX: Final = 3600.0
#: The longest pause between two tries then.
GIVEN_UP_S: Final = 0.1


@attrs.define
class Written:
    """The end of a write of a counter: when it is over, and its error."""

    over: trio.Event = attrs.field(factory=trio.Event)
    error: OSError | None = None


class QuorumActivation(ReplicationPart, Activation):
    """The part of a node whose pair asks a quorum: without the lock the node follows another one."""

    def __init__(
        self, rules: ReplicationRules, control: NodeControl, reach: Reach, root: str, nursery: trio.Nursery
    ) -> None:
        super().__init__(rules, control, reach, root, nursery)
        invariant(isinstance(rules.quorum, QuorumProvider), "a provider is asked")
        assert isinstance(rules.quorum, QuorumProvider)
        self._role = self._acting.role = QuorumRole(
            rules.quorum,
            name=control.name,
            instance=control.instance,
            store=self._store_counter,
            complain=self._complain,
            patience_s=reach.call_timeout,
        )
        # Why this node would get the role now.
        self._reason = "started"
        # A node that has handed over lets the other one go first until then.
        self._not_before = -math.inf
        # The epoch that has ended with a failback, and how long the next one waits.
        self._gave_back = 0
        self._pause_s = 0.0
        self._isolation = Isolation()
        # Whether the quorum has answered in this life.
        self._answered = False
        # Whether every other place has said in this life that it has no store.
        self._is_alone = False

    async def enter(self) -> None:
        """Lock the directory of the node, and read its memory."""
        if not self._reach.connection_ttl < math.inf:
            # The lock is looked at while nobody is followed; one that is silent for ever would be followed for ever.
            raise SettingsError("connection_ttl", math.inf, "a number of seconds, where a quorum provider is asked")
        await super().enter()
        node_id, wanted = self._acting.node_id, self._control.wanted_id
        coordination = self._coordination
        if coordination and wanted not in (None, coordination):
            raise SettingsError("node_id", wanted, f"None, or {coordination.hex()} by the coordination_id")
        wanted = coordination or wanted
        if self._rules.primary and node_id and wanted and node_id != wanted:
            text = f"{wanted.hex()} by the settings, and {node_id.hex()} in the store"
            raise SettingsError("coordination_id" if coordination else "node_id", text, "the id of the store")
        if self._rules.check_hosts:
            self._nursery.start_soon(self._check_hosts)
        text = "the quorum of a pair by replication is experimental: its settings may change"
        self._warnings.say("quorum_experimental", text)
        if self._rules.ignored:
            text = f"with a quorum provider {' and '.join(self._rules.ignored)} mean nothing, and are ignored"
            self._warnings.say("settings_ignored", text)

    # -- the contract

    async def wait(self) -> ActiveTerm:
        """Wait until this node has the lock and may serve with its store."""
        self._reason = "started"
        taken = False
        try:
            while True:
                await self._compete()
                if (record := await self._claim()) is not None:
                    break
                await trio.sleep(self._rules.retry_interval)
            self._last_error = ""
            self._note_return(record.epoch)
            found = await self._begin(record.epoch, record.sequence, self._reason, await self._own_id())
            taken = True
        finally:
            if not taken:
                await self._role.release()
        if (term := self._acting.term) is not None:
            self._nursery.start_soon(self._watch_lock, term)
        return found

    async def release(self, *, failover: bool) -> None:
        """Give the role up, and the lock: the replica takes it."""
        term = self._acting.term
        # Who follows goes first, if it was told to.
        if term is not None and term.order is not None and term.order.reason == "failback":
            self._gave_back = term.epoch
        if term is not None and term.yielded:
            self._not_before = self._later
        self._role.close()
        try:
            await super().release(failover=failover)
        finally:
            await self._role.release()

    def _note_return(self, epoch: int) -> None:
        """Wait twice as long before the next failback if the role came back from the one before."""
        if self._gave_back and epoch == self._gave_back + 1:
            self._pause_s = min(max(2 * self._pause_s, 2 * self._rules.max_retry_interval), PAUSE_S_MAX)
            self._no_failback_before = trio.current_time() + self._pause_s
        else:
            self._pause_s, self._no_failback_before = 0.0, -math.inf
        self._gave_back = 0

    # -- the network

    async def _check_hosts(self) -> None:
        """Find out from time to time whether the node is cut off, until cancelled."""
        rules = self._rules
        while True:
            answered = await any_answers(self._env.network, rules.check_hosts, rules.check_hosts_timeout)
            was = self._isolation.isolated
            if self._isolation.round(answered=answered) and not was:
                text = f"none of {', '.join(rules.check_hosts)} answers: {self._control.name!r} does not serve"
                self._warnings.say("isolated", text)
            if self._isolation.isolated:
                self._order(StepBack(reason="isolated"))
            if self._isolation.isolated is not was:
                self._show()
                self._changed.tell()
            await trio.sleep(rules.check_hosts_period)

    def _show(self, reason: str = "") -> None:
        super()._show(reason)
        if self._isolation.isolated and self._life.state == "searching":
            board = self._control.board
            board.show(attrs.evolve(board.report, phase="isolated"))

    # -- the lock

    async def _watch_lock(self, term: ReplicationTerm) -> None:
        """End the term when the lock is lost."""
        await self._role.lost()
        term.lapse()
        if self._acting.term is term:
            self._order(StepBack(reason="lease_lost", at_once=True))

    async def _compete(self) -> None:
        """Follow other nodes, and stop with the lock."""
        async with self._remembering:
            # What a disk is still to store comes before anything else.
            pass
        failure: MeshqError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_all)
            try:
                await self._get_lock()
            except MeshqError as error:
                failure = error
            nursery.cancel_scope.cancel()
        # The store is closed, whatever has been followed.
        self._acting.claiming = False
        self._lose()
        if failure is not None:
            raise failure

    async def _follow_all(self) -> None:
        """Follow one node after the other, as long as one is found that serves."""
        pause = self._rules.retry_interval
        while self._ordered:
            await self._changed.wait()
        while True:
            followed = stored = silent = False
            waiting: list[Log] = []
            new = self._rules.primary and not await self._own_id()
            for url in self._reach.urls:
                end = await self._follow(url)
                self._acting.claiming = False
                if end.node is not None:
                    self._reason = end.reason if end.reason in GIVEN_UP else "crash"
                    self._lose()
                    self._show()
                    followed = True
                    break
                if end.waiting is not None and not is_stranger(end.waiting, self._wanted()):
                    waiting.append(end.waiting)
                stored = stored or (end.waiting is not None and end.waiting.epoch > 0)
                silent = silent or (new and not (end.waiting or await self._is_stranger(url, end)))
            if new and not (stored or followed):
                await self._make_id(silent=silent)
            self._handing_on.hear(waiting)
            self._changed.tell()
            pause = self._rules.retry_interval if followed else min(pause * 2, self._rules.max_retry_interval)
            await trio.sleep(pause)

    async def _get_lock(self) -> None:
        """Try to get the lock while no node is followed; return when it is held."""
        pause = QUICK_S
        # Two that look at the same times would hinder each other for ever.
        apart = 1 + self._control.instance[0] / 512
        while True:
            if self._follows:
                pause = QUICK_S
                with trio.move_on_after(self._rules.retry_interval):
                    await self._changed.wait()
                continue
            if trio.current_time() >= self._not_before and await self._try():
                return
            await trio.sleep(pause * apart)
            longest = GIVEN_UP_S if self._reason in GIVEN_UP else math.inf
            pause = min(2 * pause, self._rules.retry_interval, longest)

    @property
    def _follows(self) -> bool:
        follower = self._follower
        return follower is not None and follower.node is not None and follower.following.state != "ended"

    async def _try(self) -> bool:
        """Try to get the lock once, if this node could serve with it; return whether it is held."""
        await trio.lowlevel.checkpoint()
        node_id = await self._own_id()
        if self._isolation.isolated or self._handing_on.nobody_needs_it:
            return False
        if not node_id:
            if self._acting.node_id:
                text = f"the copy of {self._control.name!r} is not whole: it serves once it has followed the other node"
                self._complain(RefusedError(text, outcome="not_done"))
            return False
        try:
            await self._role.open(self._nursery, node_id)
            refusal = await self._refusal()
            self._answered = True
            if refusal is None and self._ordered:
                if held := await self._role.acquire():
                    return held
                refusal = NoClaim(reason="held", text="the store is claimed, and another node has the lock: stop it")
            if refusal is None:
                return await self._role.acquire()
            self._complain(RefusedError(refusal.text, outcome="not_done"))
        except (ConnectionBrokenError, RefusedError) as error:
            self._complain(error)
        except MeshqError as error:
            if self._rules.wait_for_activation and not (self._stepped_back or self._answered):
                raise
            self._complain(error)
        return False

    async def _refusal(self) -> NoClaim | None:
        """Return the reason against a claim, by the record without the lock; None: there is none."""
        if self._ordered:
            if text := ended_mark((self._env.wall.now_ms() - self._standing.marked_ms) / 1000):
                return await self._forget_mark(NoClaim(reason="void", text=text))
            if self._standing.against < 0:
                await self._remember(attrs.evolve(self._standing, against=await self._role.counter()))
                if self._standing.against < 0:
                    text = "the store is claimed, and its disk does not take at which counter of the quorum"
                    return NoClaim(reason="unknown", text=text)
        found = await self._role.refusal(**self._about)
        return found if found is None else await self._forget_mark(found)

    @property
    def _about(self) -> dict[str, Any]:
        """The fields of a claim by this node."""
        standing = self._standing
        if self._ordered:
            epoch, against = standing.unclaimed.epoch + 1, standing.against
            return {"activation": standing.activation, "epoch": epoch, "against": against}
        return {"activation": standing.activation, "epoch": self._known}

    async def _forget_mark(self, found: NoClaim) -> NoClaim:
        """Obey the operator no more if the order is void; the node follows others then."""
        if found.reason == "void":
            self._warnings.say("claim_void", found.text)
            await self._remember(attrs.evolve(self._standing, claimed=False))
            self._changed.tell()
        return found

    async def _claim(self) -> QuorumRecord | None:
        """Claim the node id with the lock; None: it has to be tried again."""
        try:
            found = await self._role.claim(**self._about)
        except (MeshqError, OSError) as error:
            self._complain(error)
            # Another node may be able to.
            await self._role.release()
            return None
        if isinstance(found, NoClaim):
            await self._forget_mark(found)
            self._complain(RefusedError(found.text, outcome="not_done"))
            return None
        return found

    @property
    def _later(self) -> float:
        return trio.current_time() + 2 * self._rules.max_retry_interval

    @property
    def _ordered(self) -> bool:
        """Whether an operator has claimed the store: the node serves with it before it follows another one."""
        return self._standing.claimed and bool(self._acting.node_id)

    @property
    def _known(self) -> int:
        """The latest epoch that the node knows of."""
        return max(self._standing.epoch, self._standing.named)

    async def _store_counter(self, activation: int) -> None:
        """Store the counter of the node's copy durably; a disk that hangs has failed after ``call_timeout``."""
        patience_s, written = self._reach.call_timeout, Written()
        self._nursery.start_soon(self._write_counter, activation, written)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + patience_s):
            await written.over.wait()
        if not written.over.is_set():
            text = f"the disk has not stored the counter of {self._control.name!r} for {patience_s:g} s"
            written.error = OSError(errno.ETIMEDOUT, text)
        if written.error is not None:
            # The other one goes first, whose disk may take it.
            self._not_before = self._later
            raise caused(written.error, None)
        await trio.lowlevel.checkpoint()

    async def _write_counter(self, activation: int, written: Written) -> None:
        with trio.CancelScope(shield=True):
            async with self._remembering:
                standing = attrs.evolve(self._standing, activation=activation)
                try:
                    await self._env.threads.run(self._directory.remember, standing, pool=POOL)
                    self._standing = self._acting.standing = standing
                except OSError as error:
                    written.error = error
                written.over.set()

    # -- the node id

    @property
    def _coordination(self) -> bytes:
        """The node id of peers; empty: they have none in common."""
        text = self._rules.coordination_id
        return b"" if text is None else node_id_of(text)

    async def _own_id(self) -> bytes:
        """Return the node id for a claim; empty: there is none before the node has followed another one."""
        await trio.lowlevel.checkpoint()
        standing = self._standing
        if not self._rules.primary:
            # What a backup may have had before it has followed anybody is no copy.
            return self._acting.node_id if standing.activation or self._ordered else b""
        # Another node may have begun to serve since the id was made.
        made = bytes.fromhex(standing.node_id) if self._is_alone else b""
        return self._coordination or self._acting.node_id or self._control.wanted_id or made

    async def _make_id(self, *, silent: bool) -> None:
        """Make the id of a new node, once each other place has said that it has no store.

        ``silent``: one has not; a port that refuses is that of a broker that is not up yet.
        """
        await trio.lowlevel.checkpoint()
        if not silent:
            if not self._standing.node_id:
                made = self._env.entropy.token(IDENTITY_BYTES)
                await self._remember(attrs.evolve(self._standing, node_id=made.hex()))
            self._is_alone = True
        elif not self._last_error or self._last_error.startswith(ConnectionBrokenError.__name__):
            # With an id of its own it would serve beside the pair whose machine was replaced.
            text = f"{self._control.name!r} has no store, and another node does not say whether it has one"
            text = f"{text}: it waits until that one runs; a node_id or a coordination_id needs no answer"
            self._complain(RefusedError(text, outcome="not_done"))

    def _progressed(self, step: str, follower: Follower) -> None:
        # The other one has gone first.
        self._not_before = -math.inf
        if step == "in_sync":
            # Whatever kept it from serving is over.
            self._last_error = ""
        super()._progressed(step, follower)

    def _wanted(self, *, asks: bool = False, ends: bytes = b"") -> Replicate:
        wanted = super()._wanted(asks=asks, ends=ends)
        return attrs.evolve(wanted, provider=True, node_id=self._coordination or wanted.node_id)
