"""The run of a broker, from its start to its end: turns as the active node, and waits between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from meshq import abc
from meshq.abc import RoleBoard, StepBack
from meshq.broker import BackupTold, EndTold, EventBus
from meshq.errors import ClosedError, MeshqError, NotActiveError, RefusedError, UsageError
from meshq.ha import Colocated, LiveOnly, ReplicationBackup, ScaleDown, SharedStoreBackup
from meshq.ids import IDENTITY_BYTES, NodeId
from meshq.lifecycle import LifeCycle
from meshq.logs import logger
from meshq.node._broker_life import BROKER_TRANSITIONS, log_state
from meshq.node._credentials import credentials_of
from meshq.node._node import Node
from meshq.node._scale_down import LeavingBroker, take_over_and_hand_over
from meshq.node._settings import BrokerSettings
from meshq.node._store import journal_of
from meshq.node._turn import StartReport, Turn, checked_activation, checked_block, checked_term, only_cancelled
from meshq.node._waiting_node import WaitingNode, waiting_control
from meshq.node.terms._guarded_links import guarded_env
from meshq.node.terms._high_availability import role_values
from meshq.node.terms._kept_listeners import KeptListeners
from meshq.node.terms._node_term import NodeTerm, NoOffice
from meshq.node.terms._policy_block import PolicyBlock
from meshq.node.terms._store_of_one_node import store_of_one_node
from meshq.notifications import BrokerStateChanged, RoleChanged

if TYPE_CHECKING:
    from meshq.ha.votes import Voter
    from meshq.node.hosting._backup_host import BackupHost, HostedBroker
    from meshq.node.hosting._hosted_backup import HostedBackup

_log = logger("node")


class BrokerRun:
    """The run of a broker, with the node of each turn."""

    def __init__(self, settings: BrokerSettings, event_bus: EventBus, make_broker: Callable[..., HostedBroker]) -> None:
        self._settings = settings
        self._make_broker = make_broker
        self._event_bus = event_bus
        self.name: str = settings.name
        #: The role of the node, and when it changed last (wall clock, ms); the identity of this life.
        self.board: RoleBoard = RoleBoard()
        self.role_since_ms: int = 0
        self.instance: bytes = b""
        self._role = self.board.report.role
        self._activation: abc.Activation | None = None
        self._env: abc.Env | None = None
        self._stop = trio.Event()
        self.turn: Turn | None = None
        #: The state of the broker.
        self.life: LifeCycle = LifeCycle(f"the broker {settings.name!r}", BROKER_TRANSITIONS)
        #: Set at the end of the run.
        self.stopped: trio.Event = trio.Event()
        #: The node while it is active, and the node while it waits; at most one of the two is there.
        self.node: Node | None = None
        self.waiting: WaitingNode | None = None
        #: The node while it hands over what it has taken over, and serves no client.
        self.handing_over: Node | None = None
        #: The id of the node, as far as it is known.
        self.node_id: NodeId | None = NodeId(settings.node_id) if settings.node_id is not None else None
        #: Runs the backups of other nodes; None: the policy has none.
        self.hosting: BackupHost | None = None
        #: Whether the one who stopped the broker wants another node to take over.
        self.failover: bool = False

    @property
    def policy_kind(self) -> str:
        """The kind of the policy by which the node is active."""
        ha = self._settings.ha
        return LiveOnly.kind if ha is None else ha.kind

    @property
    def _ends_then(self) -> bool:
        """Whether the broker stops after such a hand-over."""
        policy = self._settings.ha
        return isinstance(policy, SharedStoreBackup | ReplicationBackup) and not policy.restart_backup

    @property
    def listening(self) -> Node | WaitingNode | None:
        """The node that has the acceptors now."""
        return self.node or self.handing_over or self.waiting

    async def hand_over(self, *, back: bool, force: bool) -> None:
        """Hand the role over, or take it, as the policy does it.

        Checkpoint: always.
        Cancellation: the order stands.
        Raises:
            RefusedError: the policy, or the lack of another node, does not allow it.
            NotActiveError: the node waits.
        """
        await self._competing().hand_over(back=back, force=force)

    def order(self, *, back: bool, force: bool) -> int:
        """Order a change of role, and return the epoch that ends.

        Raises:
            RefusedError: the policy, or the lack of another node, does not allow it.
            NotActiveError: the node waits.
        """
        return self._competing().order(back=back, force=force)

    def role_values(self) -> dict[str, Any]:
        """Return the role, as operations answer it."""
        return role_values(self)

    @property
    def hosted(self) -> tuple[HostedBackup, ...]:
        """The backups of other nodes that run here."""
        return self.hosting.backups if self.hosting is not None else ()

    def hosted_backups(self, node_id: str) -> dict[str, Any]:
        """Return the backups that the node runs, as operations answer them."""
        return self.hosting.values(node_id) if self.hosting is not None else NoOffice().hosted_backups(node_id)

    def host_backup(self, node_id: str, request: bytes, told: BackupTold, *, ends: bool, clears: bool) -> None:
        """Begin to run the backup of another node; ``ends``: run it no more; ``clears``: another one makes room for it.

        ``told`` is called once, also in this call, with the name of the backup or the reason why there is none.
        """
        if self.hosting is None:
            NoOffice().host_backup(node_id, request, told, ends=ends, clears=clears)
        elif ends:
            self.hosting.end(node_id, request)
            told("", "")
        else:
            self.hosting.begin(node_id, request, told, clears=clears)

    def end_backup(self, name: str, told: EndTold, *, force: bool) -> None:
        """Begin to end the backup of a node that is gone for good; ``told`` is called once, also in this call."""
        if self.hosting is None:
            NoOffice().end_backup(name, told, force=force)
        else:
            self.hosting.end_by_hand(name, told, force=force)

    def _competing(self) -> abc.Activation:
        if self.life.state not in ("waiting", "starting", "active"):
            raise NotActiveError(f"the broker {self.name!r} is {self.life.state}")
        if self._activation is None:
            raise RefusedError(f"the broker {self.name!r} has no policy by which another node takes over")
        return self._activation

    def end(self) -> None:
        """Stop the broker: the turn ends, and no other one begins."""
        self._stop.set()
        if self.turn is not None:
            self.turn.end()

    async def run(self, env: abc.Env, task_status: trio.TaskStatus[None]) -> None:
        """Run the broker until it is stopped.

        Checkpoint: always.
        Cancellation: it is ``stopped`` at once, as after a crash.
        Raises: as ``Broker.run``.
        """
        self._event_bus.set_clock(env.wall.now_ms)
        self._env = env
        self._change_state("start")
        report = StartReport(task_status)
        try:
            policy = self._settings.policy
            if policy is None:
                self.turn = turn = Turn()
                async with store_of_one_node(self._settings, env) as settings:
                    with turn.scope:
                        await self._serve(settings, env, turn, report)
            else:
                # One life has many nodes, or none.
                self.instance = env.entropy.token(IDENTITY_BYTES)
                async with self._hosting(env), self._voting(env):
                    await self._take_turns(policy, env, report)
            if self.life.state != "stopping":
                # The order came while the node started, or stepped back.
                self._change_state("stop")
        except BaseException as error:
            self._ended_by(error)
            raise
        finally:
            if self.life.state == "stopping":
                self._change_state("close")
            self._event_bus.close()
            self.stopped.set()
        if report.missed:
            raise ClosedError(f"the broker {self._settings.name!r} was stopped before it has started")

    @asynccontextmanager
    async def _hosting(self, env: abc.Env) -> AsyncIterator[None]:
        """Surround the turns of the node: with a policy that says so, backups of other nodes run meanwhile."""
        policy = self._settings.ha
        if not isinstance(policy, Colocated):
            yield
            return
        # A broker without such backups does not load what they need.
        from meshq.node.hosting._backup_host import BackupHost
        from meshq.node.hosting._remembering_host import RememberingHost

        kind = RememberingHost if policy.replicates else BackupHost
        self.hosting = host = kind(self._settings, policy, env, self._make_broker, self._event_bus.emit)
        async with host.serving():
            yield

    @asynccontextmanager
    async def _voting(self, env: abc.Env) -> AsyncIterator[None]:
        """Surround the turns of the node: it votes about others of its cluster, also while it waits.

        A node that has stepped back is a voter of others until they know those that serve now.
        """
        failure: Exception | None = None
        voter: Voter | None = None
        try:
            async with trio.open_nursery() as nursery:
                voter = self._vote(env, nursery)
                try:
                    yield
                except (MeshqError, OSError) as error:
                    # It leaves the block as it was raised, in no group.
                    failure = error
                finally:
                    self.board.voter = None
                    nursery.cancel_scope.cancel()
        finally:
            if voter is not None:
                voter.close()
        if failure is not None:
            raise failure

    def _vote(self, env: abc.Env, nursery: trio.Nursery) -> Voter | None:
        """Let the node vote about other nodes of its cluster from now on; return its voter, to be closed at the end."""
        if not any(one.kind == "cluster_connection" for one in self._settings.services):
            return None
        from meshq.ha.votes import Voter

        self.board.voter = voter = Voter(self.name, self._settings.data_dir, env, nursery)
        return voter

    def _change_state(self, change: str, error: BaseException | None = None) -> None:
        state = self.life.on(change)
        log_state(self._settings.name, state, error)
        self._event_bus.emit(BrokerStateChanged, state=state)

    def _ended_by(self, error: BaseException) -> None:
        if self.life.ended:
            return
        if not only_cancelled(error):
            self._change_state("fail", error)
        elif self.life.state != "stopping":
            # Whoever cancels it wants it to go, at once; nothing has failed.
            self._change_state("stop")

    async def _serve(self, settings: BrokerSettings, env: abc.Env, turn: Turn, report: StartReport) -> None:
        """Open the store, be active until the turn is over, and close the store."""
        node: Node | None = None
        voter: Voter | None = None
        try:
            journal = journal_of(settings, env, turn.sink)
            term = NodeTerm(turn.guard, self.board, self, self._settings.data_dir)
            node = await Node.open(settings, env, journal, self._event_bus, term=term)
            self.node_id = node.node_id
            self.instance = self.instance or node.core.settings.instance
            turn.node = node
            async with trio.open_nursery() as nursery:
                if settings.takeover is None:
                    if self._settings.policy is None:
                        voter = self._vote(env, nursery)
                    await node.start(nursery)
                    await self._serve_clients(node, turn, report)
                else:
                    await self._hand_all_over(node, turn, settings.takeover, nursery)
                nursery.cancel_scope.cancel()
        except BaseException as error:
            if not (turn.scope.cancel_called and only_cancelled(error)) and not turn.excuses(error):
                self._ended_by(error)
            raise
        finally:
            self.node = self.handing_over = None
            if voter is not None:
                self.board.voter = None
                voter.close()
            if node is not None:
                self._withdraw(node.inproc)
                with trio.CancelScope(shield=True):
                    await node.close()

    async def _serve_clients(self, node: Node, turn: Turn, report: StartReport) -> None:
        """Be active until the turn is over."""
        self.node = node
        self._publish(node.inproc)
        self._change_state("activate")
        turn.active = True
        if self._activation is not None:
            self._activation.served()
        self._note_role()
        report.make()
        await turn.over.wait()
        if self._activation is not None:
            with trio.move_on_after(self._settings.stop_timeout):
                await self._activation.leaves()
        if turn.step_back is None:
            self._change_state("stop")
            await node.stop()
        else:
            await node.stop(step_back=turn.step_back.reason)

    async def _hand_all_over(self, node: Node, turn: Turn, order: ScaleDown, nursery: trio.Nursery) -> None:
        """Serve no client, hand all messages over to another node, and step back."""
        why = f"the broker {self.name!r} has taken over, and hands over to another node what it holds"
        node.core.closing.take_nothing_in(why)
        await node.start(nursery)
        self.handing_over = node
        self._publish(node.inproc)
        activation = self._activation
        if activation is None:
            # Only a policy that has this order comes here.
            raise UsageError("the policy of ha= does not scale down")
        activation.scales_down()
        await activation.keeps()
        leaving = LeavingBroker(self._settings, lambda: node.handover, trio.lowlevel.current_trio_token)
        await take_over_and_hand_over(leaving, self.name, order, activation.finds_no_target)
        activation.scaled_down()
        await activation.keeps()
        turn.step_back = StepBack(reason="scaled_down", final=self._ends_then)
        with trio.move_on_after(self._settings.stop_timeout):
            await activation.leaves()
        await node.stop(step_back="scaled_down")

    async def _take_turns(self, policy: abc.HAPolicy, env: abc.Env, report: StartReport) -> None:
        """Wait and be active by turns, as the policy says, until the broker is stopped."""
        settings, listeners = self._settings, KeptListeners(env.network)
        env = attrs.evolve(env, network=listeners)
        credentials = await credentials_of(settings, env)
        control = waiting_control(settings, env, self._urls, self.board, self.instance)
        self.board.watch(self._note_role)
        self.board.notify = self._event_bus.emit
        # Until the policy has let the broker join, a stop cancels the policy.
        self.turn = joining = Turn()
        if self._stop.is_set():
            joining.end()
        block = PolicyBlock(joining.scope, settings.stop_timeout)
        try:
            with joining.scope:
                async with checked_block(policy.activation(control)) as given:
                    activation = checked_activation(given)
                    # One of a program's own may have no more than the three calls that every turn needs.
                    self._activation = activation if isinstance(activation, abc.Activation) else None
                    joining.active = True
                    with block.used():
                        while not self._stop.is_set():
                            waiting = WaitingNode(settings, env, control, credentials, self._event_bus)
                            told = None if policy.wait_for_activation else report
                            term = await self._wait(waiting, env, activation, told)
                            if self._stop.is_set():
                                listeners.close()
                                self._change_state("stop")
                            if term is not None:
                                await self._hold(term, env, activation, report)
            block.conclude()
        finally:
            self._activation = None
            self.board.unwatch(self._note_role)
            listeners.close()

    def _publish(self, acceptor: abc.LocalAcceptor) -> None:
        """Let clients of this process find the acceptor by the broker's name."""
        if self._env is not None:
            self._env.local[self.name] = acceptor

    def _withdraw(self, acceptor: abc.LocalAcceptor) -> None:
        if self._env is not None and self._env.local.get(self.name) is acceptor:
            del self._env.local[self.name]

    def _urls(self) -> tuple[str, ...]:
        return self._settings.dialed(() if self.listening is None else self.listening.listeners.urls)

    def _note_role(self) -> None:
        """Notify of another role: of a new one as soon as clients are served."""
        report, before = self.board.report, self._role
        if report.role == before or (report.role == "primary" and self.life.state != "active"):
            return
        self._role = report.role
        if self._env is not None:
            self.role_since_ms = self._env.wall.now_ms()
        vacant = self.turn.vacant_since if self.turn is not None and report.role == "primary" else None
        without_service = 0.0 if vacant is None else trio.current_time() - vacant
        about = {"role": report.role, "previous": before, "epoch": report.epoch, "reason": report.reason}
        _log.info("%s is %s now (%s)", self.name, report.role, report.reason, extra={"event": "role_changed"})
        self._event_bus.emit(RoleChanged, **about, without_service=without_service)

    async def _wait(
        self, waiting: WaitingNode, env: abc.Env, activation: abc.Activation, report: StartReport | None
    ) -> abc.ActiveTerm | None:
        """Be passive until the node may be active, or the broker is stopped; return the term, if there is one."""
        term: abc.ActiveTerm | None = None
        try:
            async with trio.open_nursery() as nursery:

                async def wait_for_term() -> None:
                    nonlocal term
                    term = checked_term(await activation.wait())
                    nursery.cancel_scope.cancel()

                await waiting.start(nursery)
                self.waiting = waiting
                self._publish(waiting.inproc)
                if self.life.state != "waiting":
                    self._change_state("wait")
                if report is not None:
                    report.make()
                nursery.start_soon(wait_for_term)
                await self._stop.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.waiting = None
            self._withdraw(waiting.inproc)
            waiting.close()
        return term

    async def _hold(self, term: abc.ActiveTerm, env: abc.Env, activation: abc.Activation, report: StartReport) -> None:
        """Be active until the node has to step back, or the broker is stopped; then give the role up."""
        settings = self._settings
        if not self._stop.is_set():
            self.turn = turn = Turn(term)
            if settings.takeover is None:
                self._change_state("start")
            if term.data_dir is not None:
                settings = attrs.evolve(settings, data_dir=term.data_dir)
            if term.node_id is not None:
                settings = attrs.evolve(settings, node_id=term.node_id)
            if term.guard is not None:
                env = guarded_env(env, term.guard)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(turn.watch, activation)
                with turn.scope, turn.excused():
                    await self._serve(settings, env, turn, report)
                nursery.cancel_scope.cancel()
            if turn.step_back is not None and turn.step_back.final:
                self._stop.set()
        # The role is given up also where the policy does not come to an end.
        with trio.move_on_after(settings.stop_timeout):
            await activation.release(failover=self.failover)
