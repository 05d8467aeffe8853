"""A node's part in replication: it serves, or follows the node that does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import attrs
import trio

from meshq.abc import ActiveTerm, NodeControl, RoleMember, StepBack
from meshq.concurrency import ChangeSignal
from meshq.errors import ConnectionBrokenError, MeshqError, NotActiveError, RefusedError
from meshq.ha.replication._acting_side import ActingSide
from meshq.ha.replication._follower import FollowEnd, Follower
from meshq.ha.replication._node_directory import NodeDirectory, read_again
from meshq.ha.replication._own_pauses import OwnPauses
from meshq.ha.replication._reach import Reach, same_place
from meshq.ha.replication._replica_machine import Following
from meshq.ha.replication._replication_rules import ReplicationRules
from meshq.ha.replication._role_life import REPLICATION_ROLE_TRANSITIONS
from meshq.ha.replication._role_report import role_report
from meshq.ha.replication._standing_format import Standing, forgotten
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.replication.comparison import Comparer
from meshq.ha.replication.meeting._asking import STRANGERS, Asker
from meshq.ha.replication.meeting._handing_on import HandingOn
from meshq.ha.replication.meeting._meeting_plan import gives_way
from meshq.ha.replication.meeting._standpoints import is_stranger, order_of
from meshq.ha.replication.places import KnownPlace
from meshq.lifecycle import LifeCycle
from meshq.logs import Warnings
from meshq.wire import Replicate

POOL = "ha"


class ReplicationPart:
    """The part of one node, be it that its pair decides alone or asks a quorum."""

    def __init__(
        self, rules: ReplicationRules, control: NodeControl, reach: Reach, root: str, nursery: trio.Nursery
    ) -> None:
        self._rules = rules
        self._control = control
        known = KnownPlace(lambda: self._standing, self._change, lambda: self._wanted().node_id)
        self._reach = reach = attrs.evolve(reach, known=known)
        self._env = control.env
        self._nursery = nursery
        self._directory = NodeDirectory(control.env.disk, root)
        self._life = LifeCycle(f"{control.name!r} in its pair", REPLICATION_ROLE_TRANSITIONS, first="searching")
        self._warnings = Warnings("ha", trio.current_time)
        self._changed = ChangeSignal()
        self._asker = Asker(reach, control.instance, lambda ends: self._wanted(asks=True, ends=ends))
        self._pauses = OwnPauses(trio.current_time(), max(0.05, min(reach.pause_s_max / 4, 5.0)))
        self._acting = ActingSide(
            rules,
            control,
            reach,
            nursery=nursery,
            changed=self._changed,
            order=self._order,
            asker=self._asker,
            give_in=self._give_in,
            pauses=self._pauses,
            warnings=self._warnings,
        )
        self._handing_on = HandingOn(self._primary_follows, self._changed, 2 * rules.max_retry_interval)
        self._standing = Standing()
        self._follower: Follower | None = None
        self._last_error = ""
        # A counter that is being stored and the end of a term are remembered one after the other.
        self._remembering = trio.Lock()
        # A role that came back is not given back again before.
        self._no_failback_before = -math.inf
        # Whether a term of this node has ended in this life: then it looks for the other one first.
        self._stepped_back = False
        # When the node that serves was last known to.
        self._vacant_since: float | None = None

    async def enter(self) -> None:
        """Lock the directory of the node, and read its memory.

        Checkpoint: always.
        Cancellation: ``leave`` unlocks it.
        Raises:
            BusyError: another broker has it.
            SettingsError: a pair has shared a store in it.
            DamagedError, OSError: the disk has failed.
        """
        # Kept there and not returned: the result of a cancelled call is lost.
        self._standing = await self._env.threads.run(self._directory.enter, pool=POOL)
        self._acting.node_id = await self._env.threads.run(self._directory.node_id, pool=POOL)
        self._acting.standing = self._standing
        if self._acting.node_id and not (self._rules.primary or self._standing.as_backup):
            # An operator who makes a primary of it later knows what that means.
            await self._remember(attrs.evolve(self._standing, as_backup=True))
        self._control.board.replicas = self._acting
        self._control.board.comparer = Comparer(lambda: (self._acting.feeder, self._acting.term))
        self._nursery.start_soon(self._keep)
        self._nursery.start_soon(self._note_pauses)
        self._show("started")

    def leave(self) -> None:
        """Take no part any more; twice is silent."""
        self._control.board.replicas = self._control.board.comparer = None
        self._acting.end()
        if self._life.state != "stopped":
            self._life.on("end")
        self._show()
        self._changed.tell()
        self._directory.leave()

    # -- the contract

    async def lost(self) -> StepBack:
        """Wait for an order to step back, or for another one than that of the last call."""
        term = self._acting.term
        while term is None or term.order is None or term.order == term.told:
            await self._changed.wait()
            term = self._acting.term
        if term.order.reason in ("failback", "forced"):
            await self.leaves()
            if term.order.at_once and self._acting.feeder is not None:
                # The links end without a word then.
                self._acting.feeder.leaving()
        term.told = term.order
        return term.order

    async def leaves(self) -> None:
        """Have it on the disk that the replica goes on, before it is told: where others vote both could win later.

        A disk that has not stored it within ``call_timeout`` has failed: no last word is said, and the replica asks.
        """
        term, votes = self._acting.term, self._acting.votes
        await trio.lowlevel.checkpoint()
        if term is None or votes is None or term.noted is not None:
            return
        term.noted = None if self._acting.in_sync and not votes.decide else False
        if self._acting.in_sync and votes.decide:
            # From here on nothing is confirmed without the replica.
            term.leaving = True
            over, late = trio.Event(), trio.Event()
            self._nursery.start_soon(self._note_leaving, term, over, late)
            try:
                with trio.move_on_after(self._reach.call_timeout):
                    await over.wait()
            finally:
                late.set()
                if not over.is_set():
                    # Also this node does not serve before the disk has answered: whoever asks need not wait for it.
                    self._acting.standing = attrs.evolve(self._standing, acted=False, in_sync=False)

    async def _note_leaving(self, term: ReplicationTerm, over: trio.Event, late: trio.Event) -> None:
        """Store that the replica goes on; and the contrary, if that is late: the last word was not said then."""
        with trio.CancelScope(shield=True):
            async with self._remembering:
                noted = await self._remember(attrs.evolve(self._standing, acted=False))
                if noted and not late.is_set():
                    term.noted = True
                else:
                    await self._remember(attrs.evolve(self._standing, acted=True))
                self._acting.standing = self._standing
                over.set()

    async def release(self, *, failover: bool) -> None:
        """Give the role up: the replica has taken it, or takes it now."""
        term = self._acting.term
        if term is not None and term.yielded != bool(term.noted):
            # A replica that has heard the last word has as much, and goes first; one that has not does not.
            await self._change(partial(attrs.evolve, acted=not term.yielded))
        self._acting.end()
        await trio.lowlevel.checkpoint()
        self._stepped_back = True
        self._vacant_since = trio.current_time()
        self._follower = None
        if self._life.state in ("activating", "active", "scaling_down", "failing_back"):
            self._life.on("step_back")
        ended = "scaled_down" if term is not None and term.emptied else "stopped"
        self._show(ended if term is None or term.order is None else term.order.reason)
        self._changed.tell()

    def served(self) -> None:
        """Note that clients are served."""
        # Something may come in from now on.
        self._handing_on.emptied = False
        self._enter("activate")

    def scales_down(self) -> None:
        """Note that the node serves no client, and hands its messages over; another one may follow it meanwhile."""
        self._enter("scale_down")

    def _primary_follows(self) -> bool:
        feeder = self._acting.feeder
        return feeder is not None and not feeder.ended and feeder.wanted.primary

    async def keeps(self) -> None:
        """Wait while a primary that is back may get everything, be it nothing by now: alone with a part it waits."""
        term = self._acting.term
        if term is not None and self._handing_on.awaited:
            term.stranded = True
        await self._handing_on.keep()
        while self._primary_follows() and not self._acting.primary_returned:
            await self._changed.wait()

    def finds_no_target(self) -> None:
        """Note that a primary that comes back gets the role, also where failback is not allowed."""
        if self._acting.term is not None:
            self._acting.term.stranded = True
            self._changed.tell()

    def scaled_down(self) -> None:
        """Note that the store is empty: the node takes the role again only for a primary that waits for it."""
        self._handing_on.emptied = True
        if self._acting.term is not None:
            self._acting.term.emptied = True

    def _enter(self, change: str) -> None:
        """Let others follow from now on."""
        term = self._acting.term
        if term is not None and self._life.state == "activating":
            term.serving = True
            if term.start is not None:
                self._acting.node_id = bytes(term.start.node_id)
            self._life.on(change)
            # Whatever kept it from serving is over.
            self._last_error = ""
            self._show()
            self._changed.tell()

    def order(self, *, back: bool, force: bool) -> int:
        """Order the node to hand over; return the epoch that ends."""
        term = self._acting.term
        if term is None:
            raise NotActiveError(f"{self._control.name!r} waits")
        if back and (self._rules.primary or not self._acting.primary_returned):
            raise RefusedError("no primary is in sync to whom this node could give the role back")
        if not self._acting.in_sync:
            raise RefusedError("no replica is in sync that could take over")
        final = back and not self._rules.restart_backup
        self._order(StepBack(reason="failback" if back else "forced", at_once=force, final=final))
        return term.epoch

    async def hand_over(self, *, back: bool, force: bool) -> None:
        """Order a change of role, and wait for the node that serves then."""
        await trio.lowlevel.checkpoint()
        epoch = self.order(back=back, force=force)
        while self._control.board.report.epoch <= epoch:
            if self._life.state == "stopped":
                return
            await self._changed.wait()

    # -- looking for the node that serves

    async def _follow(self, url: str) -> FollowEnd:
        """Ask a node for its log, and follow it until the link ends."""
        try:
            link = self._reach.factory(url).log_link(self._wanted(), instance=self._control.instance)
        except MeshqError as error:
            self._complain(error, url)
            return FollowEnd(error=error)
        self._follower = follower = Follower(
            link,
            self._directory,
            env=self._env,
            keys=tuple(self._control.encryption_keys),
            keep=self._rules.max_saved_replicated_journals,
            following=Following(max(self._standing.epoch, self._standing.named)),
            before=attrs.evolve(self._reach.before(url, self._standing), as_backup=not self._rules.primary),
            progress=self._progressed,
        )
        known = False
        try:
            end = await follower.run()
        finally:
            known = await self._read_standing(follower)
        if not known:
            # What is here may be whole, and nothing says so any more.
            end = attrs.evolve(end, may_take_over=False)
        if end.node is not None:
            self._vacant_since = trio.current_time()
        if not end.may_take_over:
            if end.node is not None:
                await self._doubt()
            self._acting.claiming = False
            self._lose()
        failure = end.error
        # A node without a policy, such as one that only votes, is no node of the pair.
        if isinstance(failure, OSError) or (
            failure is not None and not isinstance(failure, NotActiveError) and failure.refusal not in STRANGERS
        ):
            self._complain(failure, url)
        self._show()
        return end

    @property
    def _made_primary(self) -> bool:
        """Whether the node was a backup before, and has a store."""
        return self._rules.primary and self._standing.as_backup and bool(self._acting.node_id)

    async def _doubt(self) -> None:
        """Remember that the store is not known to be whole."""
        if self._standing.in_sync and not self._standing.acted:
            await self._remember(attrs.evolve(self._standing, in_sync=False, members=()))

    async def _remember(self, standing: Standing) -> bool:
        try:
            await self._env.threads.run(self._directory.remember, standing, pool=POOL)
        except OSError as error:
            self._complain(error)
            return False
        self._standing = self._acting.standing = standing
        return True

    async def _change(self, change: Callable[[Standing], Standing]) -> bool:
        """Change the memory durably, and in the term of this moment; return whether that could be done."""
        term = self._acting.term
        async with self._remembering:
            # What a node notes in a term is not written over what it stores after the term.
            changed = change(self._standing) if self._acting.term is term else self._standing
            # A write that has failed may be on the disk all the same.
            is_known = changed is self._standing and not self._directory.is_unsure
            return is_known or await self._remember(changed)

    def _lose(self) -> None:
        if self._life.state in ("syncing", "in_sync", "voting"):
            self._life.on("lose")

    async def _read_standing(self, follower: Follower) -> bool:
        """Read the memory that a node has after it followed; return whether that could be done."""
        found = await read_again(self._directory, self._env.threads, POOL, self._complain)
        self._standing = forgotten(self._standing, 0 if follower.node is None else follower.node.epoch)
        if found is not None:
            self._standing, self._acting.node_id = found
        self._acting.standing = self._standing
        return found is not None

    def _wanted(self, *, asks: bool = False, ends: bytes = b"") -> Replicate:
        control, term = self._control, self._acting.term
        # A backup that has served for nobody yet follows whoever lets it.
        known = self._acting.node_id if self._rules.primary or self._standing.epoch or term else b""
        return Replicate(
            node_id=control.wanted_id or known,
            instance=control.instance,
            node_name=control.name,
            place=self._reach.own_url,
            group=self._rules.group_name or "",
            primary=self._rules.primary,
            epoch=term.epoch if term is not None else max(self._standing.epoch, self._standing.named),
            fingerprint=self._reach.fingerprint(control.instance),
            asks=asks,
            acts=term is not None,
            ends=bool(ends),
            given_up=ends,
            ttl_ms=self._reach.ttl_ms,
            compares=True,
            host=self._reach.host_url,
        )

    async def _is_stranger(self, url: str, end: FollowEnd) -> bool:
        """Whether who has answered is no other node of this pair, so that it makes no difference to it."""
        if end.waiting is not None:
            return is_stranger(end.waiting, self._wanted())
        return not (end.nobody or end.silent) and await self._asker.finds_stranger(url)

    async def _note_pauses(self) -> None:
        """Note that the node runs, and end its link to the primary after a pause that was too long."""
        while True:
            await trio.sleep(self._pauses.period_s)
            began, follower = trio.current_time() - self._pauses.period_s, self._follower
            if self._pauses.longest_s(began, trio.current_time()) > self._reach.pause_s_max and follower is not None:
                self._give_up(follower)

    def _give_up(self, follower: Follower) -> None:
        """Take over no more, and end the link."""
        self._acting.claiming = False
        if follower.following.state != "ended":
            follower.give_in()

    def _give_in(self, wanted: Replicate) -> None:
        """End the link to the node that asks, and take over no more."""
        follower = self._follower
        node = follower.node if follower is not None and follower.following.state != "ended" else None
        asking = (wanted.node_id, wanted.epoch, wanted.node_name)
        if follower is not None and node is not None and (node.node_id, node.epoch, node.name) == asking:
            self._give_up(follower)

    def _progressed(self, step: str, follower: Follower) -> None:
        if step == "begun":
            self._life.on("follow")
            self._handing_on.emptied = self._handing_on.awaited = False
        elif step == "dropped":
            self._acting.claiming = False
        else:
            # Whoever asks is told to wait: this node takes over as soon as the link ends, if a word says so that came.
            self._acting.claiming = True
        if step == "in_sync":
            self._life.on("reach")
        self._show()
        self._changed.tell()

    # -- taking the role

    async def _begin(self, epoch: int, activation: int, reason: str, node_id: bytes | None = None) -> ActiveTerm:
        """Begin a term: the epoch is remembered before anything is served."""
        standing = attrs.evolve(
            self._standing,
            epoch=epoch,
            activation=activation,
            acted=True,
            in_sync=True,
            as_backup=False,
            claimed=False,
            members=(self._control.name,),
            replica="",
            number=self._standing.number + 1,
            later=(),
        )
        # From here on a pause takes nothing back: whoever asks hears that the role is being taken.
        self._follower = None
        self._acting.claiming = True
        async with self._remembering:
            await self._env.threads.run(self._directory.remember, standing, pool=POOL)
            self._standing = self._acting.standing = standing
        term = self._acting.begin(standing)
        self._life.on("take")
        self._show(reason)
        self._changed.tell()
        return ActiveTerm(sink=term, guard=term, vacant_since=self._vacant_since, node_id=node_id)

    # -- while it serves

    async def _keep(self) -> None:
        """Give the role back, look for another active node of the same id, and show the role, until cancelled."""
        asked = -math.inf
        while True:
            with trio.move_on_after(self._rules.retry_interval):
                await self._changed.wait()
            term = self._acting.term
            self._show()
            if term is None or not term.serving or term.order is not None:
                continue
            if self._fails_back and self._acting.primary_returned:
                self._order(StepBack(reason="failback", final=not self._rules.restart_backup))
            elif trio.current_time() >= asked + self._rules.retry_interval:
                await self._meet(term)
                asked = trio.current_time()

    @property
    def _fails_back(self) -> bool:
        rules, term = self._rules, self._acting.term
        allowed = rules.allow_failback or (term is not None and term.stranded)
        return allowed and not rules.primary and trio.current_time() >= self._no_failback_before

    async def _meet(self, term: ReplicationTerm) -> None:
        """Ask the other nodes whether one serves for this node id, too."""
        start, followed = term.start, self._acting.followed_by
        for url in self._reach.urls:
            if same_place(url, followed):
                continue
            answer = (await self._asker.ask(url)).log
            if answer is None or start is None or answer.node_id != bytes(start.node_id):
                continue
            if answer.kind == "accepted" and gives_way(self._acting.order_in(term), order_of(answer)):
                text = f"{answer.name!r} serves for the same node id, in epoch {answer.epoch}"
                if self._acting.role is not None:
                    self._warnings.say("superseded", f"{text}, by the lock of another quorum", answer.name)
                    continue
                self._warnings.say("superseded", f"{text}: {self._control.name!r} steps back")
                self._order(StepBack(reason="superseded", at_once=True))

    def _order(self, order: StepBack) -> None:
        term = self._acting.term
        if term is None or (term.order is not None and (term.order.at_once or not order.at_once)):
            return
        term.order = order
        if order.reason in ("failback", "forced") and self._life.state in ("activating", "active", "scaling_down"):
            self._life.on("fail_back")
        self._show(order.reason)
        self._changed.tell()

    # -- what is seen

    def _complain(self, error: Exception, url: str = "", hint: str = "") -> None:
        text = f"{type(error).__name__}: {error}"
        text = (text if url in text else f"{text} ({url})") + hint
        if isinstance(error, ConnectionBrokenError) and not self._last_error.startswith(type(error).__name__):
            # A node that is not there is no news where another one has said what is wrong.
            text = self._last_error or text
        if text != self._last_error:
            self._last_error = text
            self._warnings.say("replication", text, type(error).__name__)

    def _show(self, reason: str = "") -> None:
        board, member = self._control.board, RoleMember(name=self._control.name, url=self._reach.own_url)
        about = {"phase": self._life.state, "reason": reason, "last_error": self._last_error}
        board.show(role_report(board.report, member, self._acting, self._follower, self._standing, **about))
