"""A node's part in the competition for a shared store."""

from __future__ import annotations

import math

import attrs
import trio

from meshq.abc import Activation, ActiveTerm, NodeControl, RoleMember, RoleReport, StepBack
from meshq.concurrency import ChangeSignal
from meshq.errors import NotActiveError, RefusedError, SettingsError
from meshq.ha._host_questions import any_answers
from meshq.ha._hosts_plan import Isolation
from meshq.ha._hung_owner import HungOwner
from meshq.ha._lease_machine import Lease
from meshq.ha._owner_format import Owner
from meshq.ha._role_life import ROLE_TRANSITIONS
from meshq.ha._shared_directory import Seen, SharedDirectory
from meshq.ha._store_settings import StoreRules
from meshq.ha._store_term import StoreTerm
from meshq.ha._turns_plan import FailbackPlan, Registration, TurnFacts, WaitingNodes, may_try, registers
from meshq.lifecycle import LifeCycle
from meshq.logs import Warnings

#: The threads for the shared directory, apart from those of the journal: both may wait for the same disk.
POOL = "ha"
#: A lease is renewed so many times while it lasts.
RENEWALS = 3
#: A node that has handed over registers again after so many leases, if nobody has taken the store.
YIELDED_LEASES = 4
#: The states in which the node has the store; in the last one it gives it away.
HOLDING = ("activating", "active", "scaling_down", "failing_back")
NOTHING_SEEN = Seen(owner=None, waiting=(), stopped=False)


class StoreActivation(Activation):
    """The competition of one node for the lock of a directory."""

    def __init__(self, rules: StoreRules, control: NodeControl, root: str) -> None:
        self._rules = rules
        self._control = control
        self._env = control.env
        self._directory = SharedDirectory(control.env.disk, root, makes_store=rules.makes_store)
        self._life = LifeCycle(f"the part of {control.name!r} in {root}", ROLE_TRANSITIONS, first="waiting")
        self._warnings = Warnings("ha", trio.current_time)
        self._room = WaitingNodes(rules.lock_check_period)
        self._hung = HungOwner(self._env.programs, rules.fence_command, rules.fence_timeout, self._warnings)
        self._isolation = Isolation()
        self._failbacks = FailbackPlan(rules.lease)
        self._term: StoreTerm | None = None
        self._seen = NOTHING_SEEN
        self._beat = 0
        self._forced = False
        # Until when this node lets others go first, after it has handed over, and the epoch that it gave up.
        self._yields = (-math.inf, 0)
        # Until when this node served last; None: it never did.
        self._served_until: float | None = None
        self._changed = ChangeSignal()
        self._show("started")

    # -- the contract

    async def wait(self) -> ActiveTerm:
        """Wait until the node has the lock, and the next epoch has begun."""
        vacant_since: float | None = None
        try:
            while True:
                await self._look()
                facts = self._facts()
                if may_try(facts):
                    try:
                        term = await self._try(facts)
                    except OSError as error:
                        self._could_not_take(error)
                    else:
                        if term is not None:
                            return self._taken(term, vacant_since)
                        vacant_since = trio.current_time()
                        await self._free_from_hung()
                await trio.sleep(self._rules.lock_check_period)
        except BaseException:
            self._drop()
            raise

    async def lost(self) -> StepBack:
        """Wait for an order to step back, or for another one than that of the last call."""
        term = self._term
        while term is None or term.order is None or term.order == term.told:
            await self._changed.wait()
        term.told = term.order
        return term.order

    async def release(self, *, failover: bool) -> None:
        """Give the store up, and say whether backups may have it."""
        term = self._term
        if term is None:
            await trio.lowlevel.checkpoint()
            return
        # The store may have failed because the term was over, before the order to step back came.
        order = term.order or term.over
        if order is not None and order.reason == "failback":
            self._failbacks.gave(term.epoch.number)
        at_stop = failover or (order is None and self._rules.failover_on_shutdown)
        hands_over = term.hands_over or (at_stop and not term.emptied)
        reason = ("scaled_down" if term.emptied else "stopped") if order is None else order.reason
        term.lease.end()
        try:
            await self._env.threads.run(self._say_released, term, reason, order is None and not hands_over, pool=POOL)
        except OSError as error:
            self._complain("release", error)
        finally:
            if hands_over:
                self._yields = (trio.current_time() + YIELDED_LEASES * self._rules.lease, term.epoch.number)
            self._drop(reason=reason)

    def served(self) -> None:
        """Note that clients are served."""
        if self._life.state == "activating":
            self._life.on("activate")
            self._forced = False
            if self._term is not None:
                # Whoever has handed over waits for that.
                self._term.serving, self._term.renewal_due = True, -math.inf
            self._show()

    def scales_down(self) -> None:
        """Note that the node serves no client, and hands its messages over."""
        if self._life.state == "activating":
            self._life.on("scale_down")
            self._forced = False
            self._show()

    def finds_no_target(self) -> None:
        """Note that a primary that comes back gets the store, also where failback is not allowed."""
        if self._term is not None:
            self._term.stranded = True

    def scaled_down(self) -> None:
        """Note that backups have to leave the store alone until a primary starts."""
        if self._term is not None:
            self._term.emptied = True

    def order(self, *, back: bool, force: bool) -> int:
        """Order the node to hand over; return the epoch that ends."""
        term = self._term
        if term is None:
            raise NotActiveError(f"{self._control.name!r} waits")
        self._check_successor(back=back)
        final = back and not self._rules.restart_backup
        self._order(StepBack(reason="failback" if back else "forced", at_once=force, final=final), hands_over=True)
        return term.epoch.number

    async def hand_over(self, *, back: bool, force: bool) -> None:
        """Order a change of role, and wait for the node that serves then."""
        await trio.lowlevel.checkpoint()
        term = self._term
        if term is None:
            await self._take_over(back=back)
            return
        epoch = self.order(back=back, force=force)
        while not self._succeeded(epoch):
            if self._life.state == "stopped":
                # It sees no more who serves.
                return
            await self._changed.wait()
        if self._term is not None and self._term is not term and self._term.epoch.number == epoch + 1:
            raise RefusedError("no other node took the store: this one has it again")

    # -- waiting

    def _facts(self) -> TurnFacts:
        now = trio.current_time()
        until, epoch = self._yields
        owner = self._seen.owner
        taken = owner is not None and owner.epoch > epoch
        return TurnFacts(
            name=self._control.name,
            role=self._rules.role,
            waiting=self._room.fresh(now),
            stopped=self._seen.stopped,
            forced=self._forced,
            yielding=now < until and not taken,
            isolated=self._isolation.isolated,
        )

    async def _look(self) -> None:
        """Say that the node waits, and read the hints of the others."""
        try:
            self._seen = await self._env.threads.run(self._meet, self._registration(), pool=POOL)
        except OSError as error:
            self._complain("look", error)
        owner = self._seen.owner
        if owner is not None and owner.name in self._room.primaries:
            self._failbacks.saw(owner.epoch, serving=owner.serving)
        self._room.look(self._seen.waiting, trio.current_time())
        self._show()
        self._changed.tell()

    def _registration(self) -> Registration | None:
        if self._term is not None or not registers(self._facts()):
            return None
        self._beat += 1
        return Registration(name=self._control.name, role=self._rules.role, url=self._control.url(), beat=self._beat)

    def _meet(self, registration: Registration | None) -> Seen:
        if registration is not None:
            self._directory.register(registration)
        return self._directory.look()

    async def _try(self, facts: TurnFacts) -> StoreTerm | None:
        """Try to get the lock; if the node gets it, begin an epoch."""
        await self._env.threads.run(self._take, facts, pool=POOL)
        if self._term is not None:
            began, now_ms = trio.current_time(), self._env.wall.now_ms()
            await self._env.threads.run(self._say_owned, self._term, now_ms, pool=POOL)
            self._term.lease = Lease(self._rules.lease, began)
        return self._term

    def _could_not_take(self, error: OSError) -> None:
        self._drop()
        self._complain("lock", error)
        if self._others():
            # Another node may be able to do what this one is not.
            epoch = self._seen.owner.epoch if self._seen.owner is not None else 0
            self._yields = (trio.current_time() + self._rules.lease, epoch)

    async def _free_from_hung(self) -> None:
        try:
            await self._hung.look(self._seen.owner)
        except OSError as error:
            self._complain("fence_command", error)

    def _take(self, facts: TurnFacts) -> None:
        # What this makes is kept here at once: a caller that is cancelled meanwhile gives it back.
        lock = self._directory.try_lock()
        if lock is None:
            return
        try:
            if self._directory.look().stopped and facts.role == "backup" and not facts.forced:
                # The node that had it was stopped between the look and the lock.
                lock.close()
                return
            node_id = self._own_store()
            epoch = self._directory.begin()
        except BaseException:
            lock.close()
            raise
        # No lease yet: it begins with the first renewal.
        self._term = StoreTerm(lock, epoch, Lease(math.inf, 0.0), self._env.disk, node_id)

    def _own_store(self) -> str:
        """Return the id of the node that the store is of; before anything in it is changed."""
        found, wanted = self._directory.node_id(), self._control.wanted_id
        if found and wanted is not None and wanted.hex() != found:
            raise SettingsError("node_id", wanted.hex(), f"{found}, the node whose store this is")
        return found or (wanted or b"").hex()

    def _taken(self, term: StoreTerm, vacant_since: float | None) -> ActiveTerm:
        self._life.on("take")
        self._failbacks.took(trio.current_time())
        # A node that has lost the store and gets it again had it last itself.
        self._show(self._control.board.report.reason if vacant_since is None else self._why_vacant())
        vacant_since = self._served_until if vacant_since is None else vacant_since
        self._changed.tell()
        return ActiveTerm(data_dir=term.epoch.directory, guard=term, vacant_since=vacant_since)

    def _why_vacant(self) -> str:
        """Why the node before does not have the store any more."""
        owner = self._seen.owner
        if self._forced:
            return "forced"
        if owner is None or not owner.released:
            return "crash"
        return owner.reason

    async def _take_over(self, *, back: bool) -> None:
        # What was seen last may be older than the node that serves, or nothing yet.
        try:
            self._seen = await self._env.threads.run(self._directory.look, pool=POOL)
        except OSError as error:
            self._complain("look", error)
        self._check_vacant()
        if back:
            raise RefusedError(f"{self._control.name!r} does not have the store that it would give back")
        self._forced = True
        # Until clients are served, or the messages are handed over.
        while self._forced:
            await self._changed.wait()
            if self._life.state == "stopped":
                raise NotActiveError(f"{self._control.name!r} has stopped")
            if self._term is None and self._forced:
                self._check_vacant()

    def _check_vacant(self) -> None:
        """Raise ``NotActiveError`` if another node has the store."""
        owner = self._seen.owner
        if owner is not None and not owner.released:
            self._forced = False
            raise NotActiveError(f"{self._control.name!r} waits: {owner.name!r} at {owner.url} has the store")

    # -- with the store

    async def keep(self) -> None:
        """Renew the lease, and look who waits, until cancelled.

        Checkpoint: always.
        Cancellation: nothing is renewed any more.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_late_leases)
            while True:
                term = self._term
                if term is None or self._life.state not in HOLDING:
                    await self._changed.wait()
                    continue
                if trio.current_time() >= term.renewal_due:
                    term.renewal_due = trio.current_time() + self._rules.lease / RENEWALS
                    await self._renew(term)
                await self._look()
                self._fail_back()
                await trio.sleep_until(min(trio.current_time() + self._rules.lock_check_period, term.renewal_due))

    async def _renew(self, term: StoreTerm) -> None:
        began, now_ms = trio.current_time(), self._env.wall.now_ms()
        try:
            await self._env.threads.run(self._say_owned, term, now_ms, pool=POOL)
        except OSError as error:
            self._complain("renewal", error)
        else:
            term.lease.renew(began, trio.current_time())
        if term.over is not None:
            self._end(term)

    def _say_owned(self, term: StoreTerm, now_ms: int) -> None:
        term.fence.check()
        if not term.node_id:
            term.node_id = self._directory.node_id()
        self._directory.write_owner(self._owner(term, now_ms))

    def _say_released(self, term: StoreTerm, reason: str, stopped: bool) -> None:
        term.fence.check()
        if stopped:
            self._directory.mark_stopped(term.epoch)
        owner = self._owner(term, self._env.wall.now_ms())
        self._directory.write_owner(attrs.evolve(owner, serving=False, released=True, reason=reason))

    def _owner(self, term: StoreTerm, now_ms: int) -> Owner:
        lease_ms = math.ceil(self._rules.lease * 1000)
        return Owner(
            name=self._control.name,
            url=self._control.url(),
            host=self._env.host,
            pid=self._env.pid,
            node_id=term.node_id,
            epoch=term.epoch.number,
            serving=term.serving,
            lease_until=now_ms + lease_ms,
            lease_ms=lease_ms,
        )

    async def _end_late_leases(self) -> None:
        """End a term whose lease has run out, also while a renewal hangs."""
        while True:
            term = self._term
            gone = term is None or (term.order is not None and term.order.at_once)
            if term is None or gone or term.lease.until == math.inf:
                await self._changed.wait()
                continue
            await trio.sleep_until(term.lease.until)
            if term.over is not None:
                self._end(term)

    def _end(self, term: StoreTerm) -> None:
        order = term.over
        if order is not None and self._term is term:
            self._order(order)

    def _fail_back(self) -> None:
        serving, returned = self._life.state in ("active", "scaling_down"), bool(self._returned())
        term = self._term
        allowed = self._rules.allow_failback or (term is not None and term.stranded)
        if allowed and self._failbacks.due(trio.current_time(), serving=serving, returned=returned):
            self._order(StepBack(reason="failback", final=not self._rules.restart_backup), hands_over=True)

    def _returned(self) -> tuple[Registration, ...]:
        """Return the primaries that wait, if this node is a backup."""
        return tuple(one for one in self._others() if one.role == "primary") if self._rules.role == "backup" else ()

    def _others(self) -> tuple[Registration, ...]:
        """Return the other nodes that wait, and are alive."""
        return tuple(one for one in self._room.proved(trio.current_time()) if one.name != self._control.name)

    def _check_successor(self, *, back: bool) -> None:
        if back and not self._returned():
            raise RefusedError("no primary waits to whom this node could give the store back")
        if not self._others():
            raise RefusedError("no other node waits for the store")

    def _succeeded(self, epoch: int) -> bool:
        """Whether a node serves in a later epoch than one that this node gave up, or has handed it over."""
        owner, term = self._seen.owner, self._term
        if term is not None:
            return term.epoch.number > epoch
        done = owner is not None and (owner.serving or owner.reason == "scaled_down")
        return owner is not None and done and owner.epoch > epoch

    def _order(self, order: StepBack, *, hands_over: bool = False) -> None:
        term = self._term
        if term is None or (term.order is not None and (term.order.at_once or not order.at_once)):
            return
        term.order, term.hands_over = order, term.hands_over or hands_over
        if order.reason in ("failback", "forced") and self._life.state in HOLDING[:-1]:
            self._life.on("fail_back")
        self._show(order.reason)
        self._changed.tell()

    # -- hosts

    async def check_hosts(self) -> None:
        """Find out from time to time whether the node is cut off, until cancelled.

        Checkpoint: always.
        Cancellation: what was found out stays.
        """
        while True:
            answered = await any_answers(self._env.network, self._rules.check_hosts, self._rules.check_hosts_timeout)
            was = self._isolation.isolated
            if self._isolation.round(answered=answered) and not was:
                self._warnings.say("isolated", f"none of {', '.join(self._rules.check_hosts)} answers")
                self._order(StepBack(reason="isolated"), hands_over=True)
            self._show()
            await trio.sleep(self._rules.check_hosts_period)

    # -- the end

    async def leave(self) -> None:
        """Give up a store that the node still has, and its registration.

        Checkpoint: always.
        Cancellation: the caller shields it.
        """
        self._drop()
        if self._life.state != "stopped":
            self._life.on("end")
        self._show()
        self._changed.tell()
        try:
            await self._env.threads.run(self._directory.withdraw, self._control.name, pool=POOL)
        except OSError as error:
            self._complain("end", error)

    def _drop(self, reason: str = "") -> None:
        """Close the lock, if the node has it."""
        term, self._term = self._term, None
        if term is None:
            return
        self._served_until = min(trio.current_time(), term.lease.until)
        term.lease.end()
        term.lock.close()
        if self._life.state not in ("waiting", "isolated", "stopped"):
            self._life.on("isolate" if self._isolation.isolated else "step_back")
        self._show(reason)
        self._changed.tell()

    def _complain(self, doing: str, error: OSError) -> None:
        text = f"{doing} of the shared store in {self._directory.root} failed: {error}"
        self._warnings.say("shared_store", text, doing)
        self._control.board.show(attrs.evolve(self._control.board.report, last_error=text))

    def _show(self, reason: str = "") -> None:
        """Show the role of the node."""
        if self._term is None and self._life.state in ("waiting", "isolated") and not reason:
            isolated = self._isolation.isolated
            if isolated != (self._life.state == "isolated"):
                self._life.on("isolate" if isolated else "reach")
        before, term, owner = self._control.board.report, self._term, self._seen.owner
        acting = None
        if term is not None:
            acting = RoleMember(name=self._control.name, url=self._control.url(), epoch=term.epoch.number)
        elif owner is not None and not owner.released:
            acting = RoleMember(name=owner.name, url=owner.url, epoch=owner.epoch)
        waiting = [one for one in self._room.fresh(trio.current_time()) if one.name != self._control.name]
        # The primary comes before all backups.
        waiting.sort(key=lambda one: one.role != "primary")
        self._control.board.show(
            RoleReport(
                role="backup" if term is None else "primary",
                phase=self._life.state,
                reason=reason or before.reason,
                epoch=acting.epoch if acting is not None else before.epoch,
                acting=acting,
                waiting=tuple(RoleMember(name=one.name, url=one.url) for one in waiting),
                last_error=before.last_error,
            )
        )
