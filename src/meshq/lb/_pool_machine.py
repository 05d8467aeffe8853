"""The targets of a pool: which of them are ready, and whether they are enough; without clock and network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from meshq.abc import BalancerTarget
from meshq.lb._target_life import new_life
from meshq.lifecycle import LifeCycle

#: Seconds that a redirected client may take to be among those that its target counts.
ARRIVAL_S: Final = 1.0
#: Characters of an error that a target's state shows.
_ERROR_CHARACTERS_MAX: Final = 300


@attrs.frozen(kw_only=True)
class TargetAnswer:
    """The answer of a target to a probe.  ``connections``: of clients, there and now."""

    node_id: str
    node_name: str
    connections: int


@attrs.frozen(kw_only=True)
class TargetState:
    """A target of a pool as it is now.

    ``state``: ``new``, ``ready`` or ``not_ready``.  ``connections``: as it said last.  ``under_way``: clients that were
    sent there since, which it may not have counted.  ``error``: why it is not ready.
    """

    url: str
    node_id: str = ""
    node_name: str = ""
    local: bool = False
    state: str = "new"
    connections: int = 0
    under_way: int = 0
    error: str = ""


@attrs.frozen(kw_only=True)
class PoolChange:
    """A change of a pool.  ``kind``: ``ready``, ``not_ready``, ``quorum_reached`` or ``quorum_lost``."""

    kind: str
    url: str = ""
    node_id: str = ""
    reason: str = ""


class _Target:
    """A target with its state."""

    __slots__ = ("answer", "error", "life", "local", "sent", "url")

    def __init__(self, url: str, *, local: bool) -> None:
        self.url = url
        self.local = local
        self.life: LifeCycle = new_life(url)
        self.answer = TargetAnswer(node_id="", node_name="", connections=0)
        #: When clients were sent there whom the answer may lack.
        self.sent: list[float] = []
        self.error = ""

    def target(self) -> BalancerTarget:
        """Return the target as policies see it."""
        answer = self.answer
        connections = answer.connections + len(self.sent)
        return BalancerTarget(url=self.url, node_id=answer.node_id, local=self.local, connections=connections)


class PoolMachine:
    """The targets of one pool, in the order of its source.

    ``own_id``: the id of the broker itself, which is a target only where ``replace`` says so.
    """

    def __init__(self, *, quorum_size: int, own_id: str) -> None:
        self._quorum_size = quorum_size
        self._own_id = own_id
        self._targets: dict[str, _Target] = {}
        self._was_active = False
        self._changes: list[PoolChange] = []

    @property
    def active(self) -> bool:
        """Whether as many targets are ready as the quorum wants."""
        return len(self.ready()) >= self._quorum_size

    def replace(self, urls: Sequence[str], local: str = "") -> None:
        """Replace the list of targets; a target in both lists keeps its state.

        ``local``: the URL of the broker itself, where the pool has it; it needs no probe.
        """
        before, self._targets = self._targets, {}
        for url in urls:
            known = before.pop(url, None)
            if known is not None and known.local is not (url == local):
                known.life.on("drop")
                known = None
            self._targets[url] = known or _Target(url, local=url == local)
        for gone in before.values():
            if gone.life.state == "ready":
                self._note("not_ready", gone, "it is not in the pool any more")
            gone.life.on("drop")
        self._compare()

    def urls(self) -> tuple[str, ...]:
        """Return the URLs of the targets that have to be probed."""
        return tuple(one.url for one in self._targets.values() if not one.local)

    def answered(self, url: str, answer: TargetAnswer, began: float) -> None:
        """Note the answer of a target to a probe that began at a time; one that is not listed any more counts not."""
        one = self._targets.get(url)
        if one is None:
            return
        if answer.node_id == self._own_id and not one.local:
            # Whether the broker itself is a target says a setting of the pool, not its list.
            self.failed(url, "it is this broker itself, which is a target with local_target_enabled only")
            return
        one.sent = [at for at in one.sent if at > began - ARRIVAL_S]
        was, one.answer, one.error = one.life.state, answer, ""
        if one.life.on("answer") != was:
            self._note("ready", one)
        self._compare()

    def failed(self, url: str, reason: str) -> None:
        """Note that a target has failed a probe."""
        one = self._targets.get(url)
        if one is None:
            return
        was, one.error = one.life.state, reason[:_ERROR_CHARACTERS_MAX]
        one.sent = []
        if one.life.on("fail") != was:
            self._note("not_ready", one, one.error)
        self._compare()

    def sent(self, target: BalancerTarget, now: float) -> None:
        """Note a client that was sent to a target."""
        one = self._targets.get(target.url)
        if one is not None:
            one.sent.append(now)

    def ready(self) -> tuple[BalancerTarget, ...]:
        """Return the targets that are ready, each node once."""
        found: dict[str, BalancerTarget] = {}
        for one in self._targets.values():
            if one.life.state == "ready":
                target = one.target()
                found.setdefault(target.node_id or target.url, target)
        return tuple(found.values())

    def states(self) -> tuple[TargetState, ...]:
        """Return the targets as they are now."""
        return tuple(
            TargetState(
                url=one.url,
                node_id=one.answer.node_id,
                node_name=one.answer.node_name,
                local=one.local,
                state=one.life.state,
                connections=one.answer.connections,
                under_way=len(one.sent),
                error=one.error,
            )
            for one in self._targets.values()
        )

    def take_changes(self) -> list[PoolChange]:
        """Return the changes since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def _note(self, kind: str, one: _Target, reason: str = "") -> None:
        self._changes.append(PoolChange(kind=kind, url=one.url, node_id=one.answer.node_id, reason=reason))

    def size(self) -> str:
        """Say how many targets are ready, and how many the quorum needs."""
        return f"{len(self.ready())} targets are ready, and {self._quorum_size} are needed"

    def _compare(self) -> None:
        """Note that the quorum was reached or lost."""
        active = self.active
        if active is not self._was_active:
            self._was_active = active
            kind = "quorum_reached" if active else "quorum_lost"
            self._changes.append(PoolChange(kind=kind, reason=self.size()))
