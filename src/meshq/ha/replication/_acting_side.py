"""The node of a pair that serves: its term, and the node that follows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from meshq.abc import NodeControl, Replica, ReplicaEnd, ReplicaHost, ReplicaLine, StepBack
from meshq.concurrency import ChangeSignal
from meshq.errors import MeshqError
from meshq.ha.replication._catch_up_plan import SyncLeft
from meshq.ha.replication._feeder import Feeder
from meshq.ha.replication._node_directory import BodyFile
from meshq.ha.replication._own_pauses import OwnPauses
from meshq.ha.replication._pair_votes import PairVotes
from meshq.ha.replication._quorum_role import QuorumRole
from meshq.ha.replication._reach import Reach
from meshq.ha.replication._replication_rules import ReplicationRules
from meshq.ha.replication._replicator_machine import ReplicationBounds
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.replication.meeting._admission_plan import Admission, is_again
from meshq.ha.replication.meeting._answered import Answered
from meshq.ha.replication.meeting._asking import PAUSE_S, Asker
from meshq.ha.replication.meeting._own_words import accepting, busy, waiting
from meshq.ha.replication.meeting._standpoints import CLAIMED, goes_before, supersedes
from meshq.ha.replication.meeting._time_to_ask import is_known_in_time
from meshq.logs import Warnings
from meshq.notifications import InSyncChanged, ReplicaDropped, SyncBegun, SyncDone, SyncFailed, SyncProgress
from meshq.wire import Log, Logged, Replicate, decline


class ActingSide(ReplicaHost[Replicate, Log, Logged]):
    """A node's part as the one that is followed.

    ``changed``: told when the replica has changed.  ``order``: ends the term.  ``asker``: asks other nodes.
    ``give_in``: ends to follow the node that asks.  ``pauses``: in which this node did not run.
    """

    def __init__(
        self,
        rules: ReplicationRules,
        control: NodeControl,
        reach: Reach,
        *,
        nursery: trio.Nursery,
        changed: ChangeSignal,
        order: Callable[[StepBack], None],
        asker: Asker,
        give_in: Callable[[Replicate], None],
        pauses: OwnPauses,
        warnings: Warnings,
    ) -> None:
        self._pauses = pauses
        self._asker = asker
        self._give_in = give_in
        self._rules = rules
        self._control = control
        self._reach = reach
        self._nursery = nursery
        self._changed = changed
        self._order = order
        self._warnings = warnings
        #: The memory of the node while it does not act.
        self.standing: Standing = Standing()
        #: The id of the node whose store it has; empty: it has none.
        self.node_id: bytes = b""
        #: Whether the node may take the role at any moment: it is in sync, or about to.
        self.claiming: bool = False
        #: The term; None: the node does not act.
        self.term: ReplicationTerm | None = None
        self.activation: int = 0
        #: The node that follows, and the last one that was dropped.
        self.feeder: Feeder | None = None
        self.dropped: Replica | None = None
        # The node that was left out last; perhaps the disk is still to take that.
        self._left: Feeder | None = None
        #: The role at a quorum provider; None: the nodes of the pair decide alone.
        self.role: QuorumRole | None = None
        #: The votes of other nodes; None: they give none.
        self.votes: PairVotes | None = None

    # -- the term

    def begin(self, standing: Standing) -> ReplicationTerm:
        """Begin a term, in the epoch that is remembered."""
        slow = self._reach.call_timeout
        bounds = ReplicationBounds(sync_s=self._rules.initial_replication_sync_timeout, slow_s=slow)
        until = None if (role := self.role) is None else lambda: role.until
        self.term = term = ReplicationTerm(standing.epoch, bounds, until)
        self.activation, self.dropped = standing.activation, None
        self.claiming = False
        return term

    def end(self) -> None:
        """End the term, and the link to the replica."""
        if self.term is not None:
            self.term.lapse()
        if self.feeder is not None:
            self.feeder.end("left", known=True)
        self.feeder = self.term = None

    @property
    def in_sync(self) -> bool:
        """Whether a node could take over."""
        return self.term is not None and bool(self.followed_by) and self._counts(self.term)

    @property
    def followed_by(self) -> str:
        """The URL of the node that follows, or its name; empty: there is none."""
        feeder = self.feeder
        return "" if feeder is None or feeder.ended else feeder.wanted.place or feeder.wanted.node_name

    @property
    def primary_returned(self) -> bool:
        """Whether the configured primary follows, and is in sync."""
        return self.in_sync and self.feeder is not None and self.feeder.wanted.primary

    def replicas(self) -> tuple[Replica, ...]:
        """Return the node that follows, and the one that was dropped last."""
        feeder, term = self.feeder, self.term
        if feeder is None or term is None:
            return () if self.dropped is None else (self.dropped,)
        reason = "link" if feeder.ended else ""
        return (feeder.shown(reason, in_sync=self._counts(term)),)

    # -- whoever wants to follow

    @property
    def silence_s_max(self) -> float:
        return self._reach.connection_ttl

    def follow(self, wanted: Replicate, line: ReplicaLine[Log], peer: str) -> ReplicaEnd[Logged]:
        """Let another node follow the log."""
        term, control = self.term, self._control
        if wanted.ends and wanted.given_up == control.instance and term is None:
            self._give_in(wanted)
        if self._reach.known is not None:
            self._reach.known.hear(wanted)
        start = term.start if term is not None else None
        if term is None or start is None or start.source is None or not term.serving or term.order is not None:
            if term is not None or self.claiming:
                return self._answer(line, busy(**self._who()))
            return self._answer(line, waiting(self.standing, primary=self._rules.primary, **self._who()))
        node_id = bytes(start.node_id)
        about: dict[str, Any] = {"primary": self._rules.primary, "place": self._reach.own_url, **self._who()}
        accepted = accepting(start, epoch=term.epoch, activation=self.activation, **about)
        if wanted.provider != (self.role is not None) and not wanted.asks:
            text = "only one of them asks a quorum provider (quorum=)"
            raise self._refused("group", wanted, f"{wanted.node_name!r} does not follow {control.name!r}: {text}")
        # Where a quorum is asked its lock decides, and nobody's word.
        if wanted.node_id == node_id and self.role is None and goes_before(wanted, self.order_in(term)):
            self._order(StepBack(reason="superseded", at_once=True))
            return self._answer(line, busy(**self._who()))
        if wanted.asks:
            return self._answer(line, accepted)
        self._check(wanted, node_id, term)
        line.send(accepted)
        files = BodyFile(control.env.disk, f"{(control.data_dir or '').rstrip('/')}/large")
        term.replicator.accept()
        self.feeder = feeder = Feeder(
            wanted,
            line,
            term,
            source=start.source,
            files=files,
            env=control.env,
            in_sync=self._came_in_sync,
            lost=self._lost,
            over=self._over,
        )
        feeder.left = SyncLeft(start.source.segments())
        size_bytes = feeder.left.size_bytes
        self._notify(SyncBegun, replica=wanted.node_name, records=term.replicator.placed, bytes=size_bytes)
        self._nursery.start_soon(feeder.run)
        self._nursery.start_soon(feeder.tell_progress, self._copied)
        self._nursery.start_soon(self._watch, feeder, term)
        self._changed.tell()
        return feeder

    def order_in(self, term: ReplicationTerm) -> tuple[int, bool, bytes]:
        """Return the place of the node in the order of serving nodes."""
        return (term.epoch, not self._rules.primary, self._control.instance)

    def _check(self, wanted: Replicate, node_id: bytes, term: ReplicationTerm) -> None:
        """Check a node that wants to follow.  Raises: MeshqError."""
        name = self._control.name
        admission = Admission(
            name=name,
            node_id=node_id,
            group=self._rules.group_name or "",
            fingerprint=self._reach.fingerprint(wanted.instance),
            locked_epoch=None if self.role is None else term.epoch,
        )
        if (found := admission.refusal(wanted)) is not None:
            raise self._refused(found[0], wanted, found[1])
        feeder = self.feeder
        if feeder is not None and is_again(wanted, feeder.wanted):
            if wanted.instance == feeder.wanted.instance:
                self._end_left(feeder)
            else:
                self._nursery.start_soon(self._look_who, feeder)
        if not term.replicator.free:
            raise decline("too_many_sessions", f"{name!r} has a replica already")

    def _end_left(self, feeder: Feeder, *, known: bool = True) -> None:
        """End the old link of a node, which follows by one link: so it does not take over."""
        if not feeder.ended:
            feeder.end("left", known=known)
        elif known and not self._recorded(feeder):
            self._over("left", True)

    async def _look_who(self, feeder: Feeder) -> None:
        """Ask at the place of the replica whether its life is over; a name alone is said by other nodes, too."""
        wanted = feeder.wanted
        log = (await self._asker.ask(wanted.place, name=wanted.node_name)).log
        if log is not None and log.instance != wanted.instance and self.feeder is feeder:
            # Another machine may have its name and its place now: where others vote that says nothing of the replica.
            self._end_left(feeder, known=self.votes is None or not self.votes.decide)

    def _refused(self, reason: str, wanted: Replicate, text: str) -> MeshqError:
        self._warnings.say("replica_refused", text, f"{wanted.node_name} {reason}")
        self._notify(ReplicaDropped, replica=wanted.node_name, reason=reason)
        return decline("usage", text)

    def _who(self) -> dict[str, Any]:
        """Return the fields that tell the node from the nodes of other pairs."""
        control = self._control
        group = self._rules.group_name or ""
        return {"name": control.name, "node_id": self.node_id, "instance": control.instance, "group": group}

    def _answer(self, line: ReplicaLine[Log], answer: Log) -> ReplicaEnd[Logged]:
        line.send(answer)
        line.flush()
        return Answered()

    # -- the node that follows

    async def _watch(self, feeder: Feeder, term: ReplicationTerm) -> None:
        """Drop a node that has had its time."""
        replicator = term.replicator
        while self.feeder is feeder and not feeder.ended:
            with trio.move_on_at(replicator.deadline):
                await term.changed.wait()
            if not feeder.ended and (reason := replicator.expired(trio.current_time())):
                feeder.end(reason)

    def _copied(self, feeder: Feeder) -> None:
        if self.feeder is feeder:
            name, left = feeder.wanted.node_name, feeder.left
            self._notify(SyncProgress, replica=name, records_left=left.records, bytes_left=left.size_bytes)

    def _came_in_sync(self) -> None:
        feeder, term, known = self.feeder, self.term, self._reach.known
        if feeder is not None and term is not None:
            assert known is not None, "whoever acts has a memory"
            lasts = partial(self._follows_in, term, feeder)
            self._nursery.start_soon(known.keep, feeder.wanted, lasts, partial(self._kept, feeder, term))

    def _follows_in(self, term: ReplicationTerm, feeder: Feeder) -> bool:
        return self.feeder is feeder and self.term is term and not feeder.ended

    def _kept(self, feeder: Feeder, term: ReplicationTerm, kept: bool) -> None:
        """Let a replica count once the disk has where it is: this node asks there when it comes back."""
        if self._follows_in(term, feeder):
            self._admit(feeder, term) if kept else feeder.end("disk", known=True)

    def _admit(self, feeder: Feeder, term: ReplicationTerm) -> None:
        """Let a replica count that has everything, once those know it who have to."""
        if self.role is not None:
            self._nursery.start_soon(self._add, self.role, feeder, term)
        elif self.votes is not None and self.votes.are_known:
            self._nursery.start_soon(self._enroll, self.votes, feeder, term)
        else:
            self._count(feeder)

    async def _enroll(self, votes: PairVotes, feeder: Feeder, term: ReplicationTerm) -> None:
        """Let a replica count once this node knows durably who votes when one of the two is lost."""
        done = await votes.enroll(feeder.wanted, lambda: self.feeder is feeder and not feeder.ended)
        if self.feeder is feeder and self.term is term and not feeder.ended:
            if done:
                self._count(feeder)
            else:
                feeder.end("disk", known=True)
        elif done and self.term is term:
            # It was not told, and the memory says that it counts; but perhaps another one does by now.
            await votes.leave_out(done)

    async def _add(self, role: QuorumRole, feeder: Feeder, term: ReplicationTerm) -> None:
        """Let a replica count once the quorum knows it as in sync; the quorum knows none without the counter."""
        while not (feeder.counted or feeder.ended):
            await term.changed.wait()
        if feeder.ended or self.term is not term:
            return
        done = await role.add(feeder.wanted.node_name)
        if self.feeder is not feeder or self.term is not term or feeder.ended:
            return
        if done:
            self._count(feeder)
        elif term.order is None and not term.ended:
            self._order(StepBack(reason="lease_lost", at_once=True))

    async def _leave_out(self, role: QuorumRole, feeder: Feeder, term: ReplicationTerm, reason: str) -> None:
        """Drop a replica once the quorum does not know it as in sync any more; until then nothing is confirmed."""
        done = await role.leave_out(feeder.wanted.node_name)
        if self.feeder is not feeder or self.term is not term:
            return
        if done and role.record is not None:
            self.activation = role.record.sequence
            self._drop(reason)
        elif not done and term.order is None and not term.ended:
            self._order(StepBack(reason="lease_lost", at_once=True))

    def _recorded(self, feeder: Feeder) -> bool:
        """Whether a replica may have the counter of this node, or the quorum may know it as in sync.

        One that was told to join may come back with an older copy under that counter, so it is left out in any case.
        """
        term, role = self.term, self.role
        joined = term is not None and term.replicator.waits
        return role is not None and (joined or role.may_count(feeder.wanted.node_name))

    def _counts(self, term: ReplicationTerm) -> bool:
        """Whether the replica that is in sync may take over."""
        feeder, role = self.feeder, self.role
        known = role is None or (feeder is not None and role.counts(feeder.wanted.node_name))
        return known and term.replicator.in_sync and feeder is not None and feeder.told

    def _count(self, feeder: Feeder) -> None:
        """Note that a replica is in sync, and notify."""
        feeder.say_in_sync(self.standing.number, self.standing.voters)
        if self.votes is not None and self.term is not None:
            self._nursery.start_soon(self.votes.look, feeder, self.term)
        self.dropped = None
        name = feeder.wanted.node_name
        self._notify(SyncDone, replica=name, seconds=trio.current_time() - feeder.since)
        self._tell_members(unprotected=False)
        self._changed.tell()

    def _lost(self, feeder: Feeder) -> None:
        self._nursery.start_soon(self._drop_lost, feeder)

    async def _drop_lost(self, feeder: Feeder) -> None:
        """Drop a node whose link has ended.

        A broker that is cancelled ends all its links, in any order: it comes no further than here, and confirms nothing
        that the replica does not have.
        """
        await trio.lowlevel.checkpoint()
        feeder.end("link")

    def _over(self, reason: str, known: bool) -> None:
        feeder, term = self.feeder, self.term
        votes = self.votes if self.votes is not None and self.votes.decide else None
        if feeder is not None and term is not None and self.role is not None and self._recorded(feeder):
            # A node that gives its role up leaves nobody out, and confirms nothing alone.
            if not (term.order or term.leaving or term.ended):
                self._nursery.start_soon(self._leave_out, self.role, feeder, term, reason)
            self._changed.tell()
        elif feeder is not None and term is not None and votes is not None and (not known or self._lasts(feeder, term)):
            settle = self._note_left if known else self._settle_by_votes
            self._nursery.start_soon(settle, votes, feeder, term, reason)
            self._changed.tell()
        elif feeder is None or term is None or known or not self._may_have_taken_over(feeder, term):
            self._drop(reason)
        else:
            self._nursery.start_soon(self._settle, feeder, term, reason)
            self._changed.tell()

    def _may_have_taken_over(self, feeder: Feeder, term: ReplicationTerm) -> bool:
        return self.role is None and term.replicator.in_sync and bool(feeder.wanted.place)

    async def _settle(self, feeder: Feeder, term: ReplicationTerm, reason: str) -> None:
        """Drop a replica that was in sync, once it is known that it has not taken over; until then nothing is confirmed
        without it.

        A node that was stopped for a while finds the end of the link, or the time of the replica, first.
        """
        began, wanted = trio.current_time(), feeder.wanted
        until = began + self._reach.patience + self._reach.call_timeout
        patience = min(self._reach.call_timeout, self._reach.patience)
        takes = False
        while self.feeder is feeder and self.term is term:
            ends = b"" if term.leaving or term.order else wanted.instance
            answer = await self._asker.ask(wanted.place, ends=ends, patience_s=patience, name=wanted.node_name)
            log = answer.log
            if log is not None and self._goes_first(log, term):
                break
            takes = takes or (log is not None and log.epoch == CLAIMED)
            now = trio.current_time()
            # Who takes the role can't be reached for a moment; and it may have begun while this node did not run.
            slept = self._pauses.longest_s(began - 2 * self._reach.patience, now) > patience / 4
            may_serve = takes or answer.lives or (answer.gone and slept)
            # One that says nothing took no role while this node was there all the time: it would have found it.
            in_doubt = not (answer.gone and slept) and (takes or slept)
            if (log is not None and log.epoch != CLAIMED) or not may_serve or (now >= until and not in_doubt):
                self._conclude(feeder, term, drop=reason)
                return
            if now >= until:
                break
            await trio.sleep(PAUSE_S)
        # The other one serves, or may, for all that is known: this one confirms nothing without it.
        self._conclude(feeder, term, order="superseded")

    async def _settle_by_votes(self, votes: PairVotes, feeder: Feeder, term: ReplicationTerm, reason: str) -> None:
        """Drop a replica once it takes over no more, or others let this node go on; until then nothing is confirmed."""
        wanted, silent_s = feeder.wanted, self._reach.call_timeout
        ask = partial(self._asker.ask, wanted.place, ends=wanted.instance, name=wanted.node_name)
        while self._lasts(feeder, term):
            answer = await ask()
            log = answer.log
            superseded = log is not None and self._goes_first(log, term)
            # What a node of its name says in another life may be the word of another machine.
            if not superseded and (log is None or log.epoch == CLAIMED or log.instance != wanted.instance):
                votes.say_held(wanted.node_name)
                # Who has nothing to confirm lets the other one ask first.
                patience_s, silent_s = 0.0 if answer.gone else silent_s, 0.0
                if patience_s and await is_known_in_time(ask, wanted.instance, term.behind, patience_s):
                    continue
                poll = await votes.hold("stay")
                if not poll.granted and not poll.lost_to(wanted.node_name):
                    if votes.stays:
                        self._conclude(feeder, term, order="vote_lost")
                    await trio.sleep(votes.wait_s)
                    continue
                superseded = not poll.granted
            if not superseded:
                await self._note_left(votes, feeder, term, reason)
                return
            self._conclude(feeder, term, order="superseded")

    async def _note_left(self, votes: PairVotes, feeder: Feeder, term: ReplicationTerm, reason: str) -> None:
        """Drop a replica that takes over no more once the disk says so; until then nothing is confirmed."""
        if self._left is feeder:
            return
        self._left, number = feeder, self.standing.number
        # After a vote that was won none is asked for again: if that were lost, the other one could win.
        while self._lasts(feeder, term) and not await votes.leave_out(number):  # noqa: ASYNC110 - a disk says nothing
            await trio.sleep(votes.wait_s)
        if self._lasts(feeder, term):
            self._drop(reason)

    def _lasts(self, feeder: Feeder, term: ReplicationTerm) -> bool:
        return self.feeder is feeder and self.term is term and not (term.leaving or term.order or term.ended)

    def _conclude(self, feeder: Feeder, term: ReplicationTerm, *, drop: str = "", order: str = "") -> None:
        """Drop a replica, or step back, for a reason; silent if it was dropped meanwhile, or the term is over."""
        if self.feeder is feeder and self.term is term:
            if order:
                self._order(StepBack(reason=order, at_once=True))
            else:
                self._drop(drop)

    def _goes_first(self, log: Log, term: ReplicationTerm) -> bool:
        """Whether another node serves for the same node id, or has served, in a term that goes first."""
        start = term.start
        return start is not None and supersedes(log, self.order_in(term), bytes(start.node_id))

    def _drop(self, reason: str) -> None:
        """Wait for the replica no more."""
        feeder, term = self.feeder, self.term
        self.feeder = None
        if feeder is None or term is None:
            return
        was = term.replicator.state
        self.dropped = feeder.shown(reason, in_sync=False)
        term.replicator.drop()
        term.changed.tell()
        name = feeder.wanted.node_name
        if was != "in_sync":
            self._notify(SyncFailed, replica=name, reason=reason)
        self._notify(ReplicaDropped, replica=name, reason=reason)
        if was == "in_sync" and not term.ended and term.order is None:
            self._tell_members(unprotected=True)
            text = f"{self._control.name!r} goes on without a replica: {name!r} was dropped ({reason})"
            self._warnings.say("unprotected", text)
        self._changed.tell()

    def _tell_members(self, *, unprotected: bool) -> None:
        members = [self._control.name]
        if self.in_sync and self.feeder is not None:
            members.append(self.feeder.wanted.node_name)
        epoch = self.term.epoch if self.term is not None else 0
        self._notify(InSyncChanged, members=tuple(members), epoch=epoch, unprotected=unprotected)

    def _notify(self, kind: Any, **about: Any) -> None:
        if self._control.board.notify is not None:
            self._control.board.notify(kind, **about)
