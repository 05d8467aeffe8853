"""A balancer: the service of a broker that says which of its clients go on to another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import trio

from meshq.abc import (
    Accept,
    AdmissionDecision,
    BalancerTarget,
    Env,
    HandshakeFacts,
    LocalBroker,
    NodeControl,
    Redirect,
    Redirector,
    Refuse,
    Service,
)
from meshq.concurrency import Completion
from meshq.errors import MeshqError, NotActiveError, SettingsError
from meshq.lb import (
    AffinityCache,
    BalancerDecision,
    BalancingMachine,
    KeyFilter,
    PoolMachine,
    begun_policy,
    filtered,
    key_of,
)
from meshq.lb.balancer._pool_watch import PoolWatch
from meshq.lb.balancer._reports import BalancerReports
from meshq.lb.balancer._settings import (
    DEFAULT_POLICY,
    NO_POOL,
    BalancerSettings,
    ClusterPool,
    DiscoveryPool,
    Policy,
    StaticPool,
)
from meshq.lb.balancer._target_source import checked_connectors, cluster_of, own_place
from meshq.lb.balancer._waiting_clients import WaitingClient, WaitingClients
from meshq.loops import check_in_trio
from meshq.statistics import BalancerRoute, BalancerStatistics

#: Random bytes with which a policy begins.
CHANCE_BYTES = 8
#: Clients and questions that wait, from which on a question is answered at once: who asks may be gone, and ask again.
QUESTIONS_MAX = 4_096
_REASON_CHARACTERS_MAX = 400


class BrokerBalancer(Service, Redirector):
    """A balancer, one of a broker's ``services``: sends the clients of an acceptor (``redirect_to=NAME``) to the broker
    that serves them.  Experimental: its settings may change in a minor version.

    ``target_key``: what a client is told from others by: ``"client_id"``, ``"sni_host"``, ``"source_ip"``,
    ``"user_name"`` or ``"role_name"``; a client without it has the key ``DEFAULT``.  ``target_key_filter``: a regular
    expression; the part of the key that it finds is the key, or the whole key where it finds nothing.
    ``local_target_filter``: keys that it matches as a whole stay at this broker.
    ``pool``: the brokers to choose from, and ``policy``: how; without both, what the local filter does not match is
    refused.  ``cache_timeout``: seconds since its last use for which a key keeps its target; ``math.inf``: for ever,
    0.0: not at all.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "broker_balancer"

    def __init__(
        self,
        name: str,
        *,
        target_key: str = "source_ip",
        target_key_filter: str | None = None,
        local_target_filter: str | None = None,
        cache_timeout: float = math.inf,
        pool: StaticPool | ClusterPool | DiscoveryPool | None = None,
        policy: Policy | None = DEFAULT_POLICY,
    ) -> None:
        self.settings: BalancerSettings = BalancerSettings(
            name=name,
            target_key=target_key,
            target_key_filter=target_key_filter,
            local_target_filter=local_target_filter,
            cache_timeout=cache_timeout,
            pool=pool,
            policy=policy,
        )
        self.name = name
        self._key_filter: KeyFilter | None = self.settings.target_key_filter
        self._cache = AffinityCache(cache_timeout)
        self._pool: PoolMachine | None = None
        self._watch: PoolWatch | None = None
        self._control: NodeControl | None = None
        # Made for each life of the broker.
        self._machine: BalancingMachine | None = None
        self._waiting = WaitingClients()
        self._reports = BalancerReports(name)

    def __repr__(self) -> str:
        return f"<BrokerBalancer {self.name!r} by {self.settings.target_key} {self.settings.policy!r}>"

    # -- the service

    @property
    def needs(self) -> Sequence[Service]:
        """The discovery group of the pool."""
        pool = self.settings.pool
        return (pool.discovery_group,) if isinstance(pool, DiscoveryPool) else ()

    def check_services(self, services: Sequence[Service]) -> None:
        """Check that the cluster connection of the pool is among the broker's services.

        Raises:
            SettingsError: it is not.
        """
        pool = self.settings.pool
        if isinstance(pool, ClusterPool) and cluster_of(services, pool) is None:
            known = ", ".join(repr(one.name) for one in services if one.kind == "cluster_connection") or "none"
            allowed = f"one of the broker's cluster connections: {known}"
            raise SettingsError("cluster_connection", pool.cluster_connection, allowed)

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """Return the errors of the connectors that the pool names."""
        pool = self.settings.pool
        return [] if pool is None else checked_connectors(pool, connectors, env)

    def announce(self, control: NodeControl) -> None:
        """Find the connectors of the pool.

        Raises:
            SettingsError: one of them isn't among the broker's, or can't be dialed.
        """
        for error in self.wrong_connectors(control.connectors, control.env):
            raise error

    def take_up(self, broker: LocalBroker) -> None:
        """Begin to decide: clients come as soon as the broker listens."""
        settings, control = self.settings, broker.control
        self._cache.clear()
        self._waiting = WaitingClients()
        self._reports.begin(broker.notifications)
        policy, pool = settings.policy, settings.pool
        self._control = control
        self._pool = self._watch = None
        if pool is not None and policy is not None:
            policy = begun_policy("policy", policy, int.from_bytes(control.env.entropy.token(CHANCE_BYTES)))
            self._pool = PoolMachine(quorum_size=pool.quorum_size, own_id=control.node_id.hex())
            self._watch = PoolWatch(pool, broker, self._pool, self._changed)
        self._machine = BalancingMachine(
            policy=policy, pool=self._pool, cache=self._cache, local_filter=settings.local_target_filter
        )
        self._key_filter = settings.target_key_filter
        broker.redirectors.add(self.name, self)

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Probe the targets, until cancelled.

        Checkpoint: always.
        Cancellation: no client is redirected any more.
        """
        check_in_trio("Broker")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._waiting.keep_time)
                if self._watch is not None:
                    nursery.start_soon(self._watch.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._machine = None
            self._waiting.look()

    def _changed(self) -> None:
        pool, settings = self._pool, self.settings.pool
        assert pool is not None and settings is not None
        changes = pool.take_changes()
        if changes:
            self._reports.tell(changes, ready=len(pool.ready()), needed=settings.quorum_size)
            self._waiting.look()
        self._reports.catch_up()

    # -- decisions

    def route(self, facts: HandshakeFacts, answer: Callable[[AdmissionDecision], None]) -> Callable[[], None]:
        """Decide about a client of an acceptor, at once or when the pool has its quorum."""
        return self._decide(partial(self._key_of, facts), facts.visited, partial(self._admit, answer))

    def find_target(self, key: str, answer: Callable[[BalancerTarget | None], None]) -> None:
        """Decide about a key for a client that asks."""
        waits = len(self._waiting) < QUESTIONS_MAX
        self._decide(partial(self._filtered, key), (), partial(self._point, answer), waits=waits)

    def _key_of(self, facts: HandshakeFacts) -> str:
        return key_of(facts, self.settings.target_key, self._key_filter)

    def _filtered(self, key: str) -> str:
        return filtered(key, self._key_filter)

    def _decide(
        self,
        key: Callable[[], str],
        visited: Sequence[str],
        answer: Callable[[BalancerDecision], None],
        *,
        waits: bool = True,
    ) -> Callable[[], None]:
        # The filters may change while a client waits.
        decide = partial(self._decision, key, visited)
        decision, pool = decide(), self.settings.pool
        if not (decision.waits and waits and self._waiting.timed) or pool is None:
            # Before this service is served, or when the start of the broker has failed, nobody would end a wait.
            answer(decision)
            return _nothing
        client = WaitingClient(decide, answer, trio.current_time() + pool.quorum_timeout)
        self._waiting.add(client)
        return partial(self._waiting.withdraw, client)

    def _decision(self, key_now: Callable[[], str], visited: Sequence[str]) -> BalancerDecision:
        key = key_now()
        if self._machine is None:
            steps = (f"the balancer {self.name!r} is not served",)
            return BalancerDecision(key=key, outcome="none", target=None, steps=steps)
        try:
            return self._machine.decide(key, trio.current_time(), visited)
        except MeshqError as error:
            self._reports.policy_failed(error)
            return BalancerDecision(key=key, outcome="none", target=None, steps=(str(error),))

    def _admit(self, answer: Callable[[AdmissionDecision], None], decision: BalancerDecision) -> None:
        self._reports.decided(decision)
        target = decision.target
        if target is None:
            text = f"the balancer {self.name!r} has no target for it: {decision.reason}"
            answer(Refuse("use_another_server", text[:_REASON_CHARACTERS_MAX]))
            return
        self._count(target)
        answer(Accept() if target.local else Redirect(target.url))

    def _point(self, answer: Callable[[BalancerTarget | None], None], decision: BalancerDecision) -> None:
        self._reports.pointed(decision)
        target = decision.target
        if target is not None:
            self._count(target)
        control = self._control
        if target is not None and target.local and not target.url and control is not None:
            target = BalancerTarget(url=own_place(control), node_id=control.node_id.hex(), local=True)
        answer(target)

    def _count(self, target: BalancerTarget) -> None:
        if self._pool is not None:
            self._pool.sent(target, trio.current_time())

    # -- operators

    def _served(self) -> BalancingMachine:
        if self._machine is None:
            raise NotActiveError(f"the balancer {self.name!r} is not served")
        return self._machine

    async def target(self, key: str) -> BalancerTarget | None:
        """Return the target of a key, as for a client that has it; None after ``quorum_timeout`` if there is none.

        Checkpoint: always.  Cancellation: nothing is left.
        Raises:
            SettingsError: the key is no text.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("BrokerBalancer")
        _check_key(key)
        self._served()
        if not self._waiting.timed:
            raise NotActiveError(f"the balancer {self.name!r} is not served")
        done = Completion()
        withdraw = self._decide(partial(self._filtered, key), (), partial(self._point, done.succeed))
        try:
            await trio.lowlevel.checkpoint()
            found: BalancerTarget | None = await done.wait()
        finally:
            withdraw()
        return found

    def explain_route(self, key: str) -> BalancerRoute:
        """Explain where a client with a key would go now, and why; nothing changes.

        Raises:
            SettingsError: the key is no text.
            NotActiveError: the broker isn't active.
        """
        _check_key(key)
        values = self.explain(key)
        return BalancerRoute.of(values, [row["step"] for row in values["steps"]])

    def explain(self, key: str) -> Mapping[str, Any]:
        """Return the decision about a key, and its steps, as the values of an answer; nothing changes."""
        decision = self._served().explain(self._filtered(key), trio.current_time())
        target = decision.target
        return {
            "key": decision.key,
            "outcome": decision.outcome,
            "url": target.url if target is not None else "",
            "node_id": target.node_id if target is not None else "",
            "steps": [{"step": step[:_REASON_CHARACTERS_MAX]} for step in decision.steps],
        }

    def set_local_target_filter(self, text: str | None) -> None:
        """Set the filter of the keys that stay here, for connections from now on, in this life of the broker.

        Raises:
            SettingsError: it is no expression, or one that could take long; or None where there is no pool.
            NotActiveError: the broker isn't active.
        """
        self.set_filter("local_target_filter", text)

    def set_target_key_filter(self, text: str | None) -> None:
        """Set the filter of keys, for connections from now on, in this life of the broker; no key is remembered.

        Raises:
            SettingsError: it is no expression, or one that could take long.
            NotActiveError: the broker isn't active.
        """
        self.set_filter("target_key_filter", text)

    def set_filter(self, setting: str, text: str | None) -> None:
        """Set one of the two filters."""
        machine = self._served()
        made = None if text is None else KeyFilter(setting, text)
        if setting == "target_key_filter":
            self._key_filter = made
            # What the keys of before have has nothing to do with those that come.
            self._cache.clear()
        elif setting == "local_target_filter":
            if made is None and self.settings.pool is None:
                raise SettingsError(setting, text, NO_POOL)
            machine.local_filter = made
        else:
            raise SettingsError("setting", setting, "'target_key_filter' or 'local_target_filter'")
        self._waiting.look()

    def describe(self) -> Mapping[str, Any]:
        """Return the state and the counters, as the values of an answer."""
        machine, pool, settings = self._served(), self._pool, self.settings
        counts = self._reports.counts
        return {
            "name": self.name,
            "target_key": settings.target_key,
            "target_key_filter": self._key_filter.text if self._key_filter is not None else "",
            "local_target_filter": machine.local_filter.text if machine.local_filter is not None else "",
            "policy": repr(settings.policy) if settings.policy is not None else "",
            "active": pool.active if pool is not None else True,
            "quorum_size": settings.pool.quorum_size if settings.pool is not None else 0,
            "ready": len(pool.ready()) if pool is not None else 0,
            "waiting": len(self._waiting),
            "keys": len(self._cache),
            "redirected": counts.redirected,
            "accepted": counts.accepted,
            "refused": counts.refused,
            "asked": counts.asked,
        }

    def describe_targets(self) -> Sequence[Mapping[str, Any]]:
        """Return the targets of the pool, as rows of an answer."""
        self._served()
        keys = self._cache.by_target()
        return [
            {
                "url": one.url,
                "node_id": one.node_id,
                "node_name": one.node_name,
                "local": one.local,
                "state": one.state,
                "connections": one.connections,
                "under_way": one.under_way,
                "keys": keys.get(one.url, 0),
                "error": one.error,
            }
            for one in (self._pool.states() if self._pool is not None else ())
        ]

    def statistics(self) -> BalancerStatistics:
        """Return the state, the counters and the targets as a frozen record.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return BalancerStatistics.of(self.describe(), self.describe_targets())


def _check_key(key: object) -> None:
    if type(key) is not str:
        raise SettingsError("key", key, "a text")


def _nothing() -> None:
    """Withdraw nothing: the question is answered."""
