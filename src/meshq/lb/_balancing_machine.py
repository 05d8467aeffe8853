"""The decision of a balancer about one key, in its order: local filter, cache, ready targets, policy, cache.

It decides from what it was told last, and waits for nothing: a pool without a quorum is an answer as well.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Final

import attrs

from meshq.abc import BalancerPolicy, BalancerTarget
from meshq.errors import SettingsError
from meshq.lb._affinity_cache import AffinityCache
from meshq.lb._key_filter import KeyFilter
from meshq.lb._pool_machine import PoolMachine

#: The URL of the broker itself where no URL is needed: a client that is accepted is not sent anywhere.
HERE: Final = BalancerTarget(url="", local=True)


@attrs.frozen(kw_only=True)
class BalancerDecision:
    """The decision about one key.

    ``outcome``: ``local``, ``remote`` or ``none``; ``waits``: the pool has no quorum, and the answer may be another one
    when it has.  ``steps``: what was asked, in order, and what came of it.
    """

    key: str
    outcome: str
    target: BalancerTarget | None
    steps: tuple[str, ...]
    waits: bool = False

    @property
    def reason(self) -> str:
        """The last step, which has led to the outcome."""
        return self.steps[-1] if self.steps else ""


class BalancingMachine:
    """The decisions of one balancer.

    ``policy``, ``pool``: both, or neither for a balancer that has only its filter.  ``local_filter``: keys that it
    matches stay here.
    """

    def __init__(
        self,
        *,
        policy: BalancerPolicy | None,
        pool: PoolMachine | None,
        cache: AffinityCache,
        local_filter: KeyFilter | None,
    ) -> None:
        self._policy = policy
        self._pool = pool
        self._cache = cache
        #: Keys that it matches stay here; changed for all connections from then on.
        self.local_filter: KeyFilter | None = local_filter

    def decide(self, key: str, now: float, visited: Collection[str] = ()) -> BalancerDecision:
        """Decide about a key, and remember the target.

        ``visited``: the ids of the nodes that have sent the client on already; none of them gets it again.

        Raises:
            SettingsError: the policy chose what it was not given.
        """
        return self._decide(key, now, visited, self._policy, remember=True)

    def explain(self, key: str, now: float) -> BalancerDecision:
        """Return the decision about a key, and change nothing.

        Raises:
            SettingsError: the policy can't be asked without a change, or chose what it was not given.
        """
        try:
            policy = copy.deepcopy(self._policy)
        except Exception as error:
            # A policy of one's own may hold anything, and copying it may run its code.
            shown, allowed = type(self._policy).__name__, f"a policy that can be copied, to be explained ({error})"
            raise SettingsError("policy", shown, allowed) from error
        return self._decide(key, now, (), policy, remember=False)

    def _decide(
        self, key: str, now: float, visited: Collection[str], policy: BalancerPolicy | None, *, remember: bool
    ) -> BalancerDecision:
        steps = [f"the key is {key!r}"]
        local, pool = self.local_filter, self._pool
        if local is not None:
            if local.matches(key):
                steps.append(f"the local filter {local.text!r} matches it: it stays here")
                return _decision(key, HERE, steps)
            steps.append(f"the local filter {local.text!r} does not match it")
        if pool is None or policy is None:
            steps.append("there is no pool: another broker serves it")
            return _decision(key, None, steps)
        ready = {target.url: target for target in pool.ready()}
        own = next((one for one in ready.values() if one.local), None)
        if visited and own is not None:
            # Another balancer has chosen this broker, which is a target: to choose anew could send the client round.
            steps.append("it was sent here, and this broker is a target: it stays here")
            return _decision(key, own, steps)
        offered = tuple(one for one in ready.values() if not one.node_id or one.node_id not in visited)
        place, node_id = self._cache.get(key, now)
        # The node has the key's messages, wherever it is now; a new node at its place is the next best.
        there = next((one for one in ready.values() if one.node_id and one.node_id == node_id), None)
        cached = there or ready.get(place)
        if cached in offered and cached is not None:
            steps.append(f"the cache has {cached.url}, which is ready")
            return self._chosen(key, cached, steps, now, remember=remember)
        steps.append("the cache has no ready target for it")
        if not pool.active:
            steps.append(f"the pool has no quorum: {pool.size()}")
            return _decision(key, None, steps, waits=True)
        if not offered:
            steps.append("all ready targets have sent it on already: it stays here")
            return _decision(key, HERE, steps)
        steps.append(f"the pool has {len(ready)} ready targets" + _less(len(ready) - len(offered)))
        chosen = _selected(policy, offered, key)
        if chosen is None:
            steps.append(f"{policy!r} chooses none of them")
            return _decision(key, None, steps)
        steps.append(f"{policy!r} chooses {chosen.url}")
        # What some targets are left out for is no choice for the next connection.
        return self._chosen(key, chosen, steps, now, remember=remember and len(offered) == len(ready))

    def _chosen(
        self, key: str, target: BalancerTarget, steps: list[str], now: float, *, remember: bool
    ) -> BalancerDecision:
        if remember:
            self._cache.put(key, target.url, now, target.node_id)
        return _decision(key, target, steps)


def _selected(policy: BalancerPolicy, offered: tuple[BalancerTarget, ...], key: str) -> BalancerTarget | None:
    """Return the target that a policy selects.

    Raises:
        SettingsError: the policy, which may be the program's, chose what it was not given, or has raised.
    """
    name, allowed = type(policy).__name__, "a policy that selects one of the given targets, or None"
    try:
        chosen: object = policy.select(offered, key)
        if chosen is None or (isinstance(chosen, BalancerTarget) and chosen in offered):
            return chosen
        shown = repr(chosen)
    except Exception as error:
        # Clients are told of it, and what it says is not for them.
        raise SettingsError("policy", f"{name}.select has raised {type(error).__name__}", allowed) from error
    raise SettingsError("policy", f"{name}.select: {shown}", allowed)


def _less(left_out: int) -> str:
    return f", {left_out} of which have sent it on already" if left_out else ""


def _decision(key: str, target: BalancerTarget | None, steps: list[str], *, waits: bool = False) -> BalancerDecision:
    outcome = "none" if target is None else "local" if target.local else "remote"
    return BalancerDecision(key=key, outcome=outcome, target=target, steps=tuple(steps), waits=waits)
