"""The reports of a balancer: counters, lines of the log, and notifications of its pool."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import attrs
import trio

from meshq.abc import NotificationSink
from meshq.errors import MeshqError
from meshq.lb import BalancerDecision, PoolChange
from meshq.logs import Warnings, logger
from meshq.notifications import BalancerQuorumLost, BalancerQuorumReached, BalancerTargetLost, BalancerTargetReady

_log = logger("lb")


class BalancerCounts:
    """The counters of a balancer."""

    __slots__ = ("accepted", "asked", "redirected", "refused")

    def __init__(self) -> None:
        self.redirected = 0
        self.accepted = 0
        self.refused = 0
        self.asked = 0


@attrs.frozen
class _Line:
    """A line of the log about a target, or about the pool: that it is there, or not."""

    event: str
    text: str
    #: The URL of the target; empty: the pool.
    about: str
    up: bool
    level: int = logging.INFO


class BalancerReports:
    """The reports of one balancer, for one life of its broker after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._warnings = Warnings("lb", trio.current_time)
        self._sink: NotificationSink | None = None
        # What is there by its last line, and lines that contradict the last one and were logged too lately to be again.
        self._up: set[str] = set()
        self._held: dict[str, _Line] = {}
        #: The counters.
        self.counts: BalancerCounts = BalancerCounts()

    def begin(self, sink: NotificationSink) -> None:
        """Begin with another life of the broker."""
        self._sink = sink
        self._up.clear()
        self._held.clear()
        self.counts = BalancerCounts()

    def decided(self, decision: BalancerDecision) -> None:
        """Note the decision about a client that connects."""
        counts = self.counts
        counts.redirected += decision.outcome == "remote"
        counts.accepted += decision.outcome == "local"
        counts.refused += decision.outcome == "none"
        self._trace(decision)

    def pointed(self, decision: BalancerDecision) -> None:
        """Note the answer to a question."""
        self.counts.asked += 1
        self._trace(decision)

    def _trace(self, decision: BalancerDecision) -> None:
        steps = "; ".join(decision.steps)
        _log.debug("%s: %s: %s", self._name, decision.outcome, steps, extra={"event": "client_balanced"})

    def policy_failed(self, error: MeshqError) -> None:
        """Warn of a policy that can't be used."""
        why = "" if error.__cause__ is None else f" ({error.__cause__!r})"
        self._warnings.say("balancer_policy_failed", f"the policy of the balancer {self._name} fails: {error}{why}")

    def tell(self, changes: Sequence[PoolChange], *, ready: int, needed: int) -> None:
        """Tell the operator, and all watchers, of changes of the pool."""
        for change in changes:
            about: dict[str, object] = {"balancer": self._name, "url": change.url, "node_id": change.node_id}
            size: dict[str, object] = {"balancer": self._name, "ready": ready, "needed": needed}
            if change.kind == "ready":
                self._line(_Line("balancer_target_ready", f"{change.url} is ready", change.url, True))
                self._emit(BalancerTargetReady, about)
            elif change.kind == "not_ready":
                text = f"{change.url} is not ready: {change.reason}"
                self._line(_Line("balancer_target_lost", text, change.url, False))
                self._emit(BalancerTargetLost, {**about, "reason": change.reason})
            elif change.kind == "quorum_reached":
                self._line(_Line("balancer_quorum_reached", f"the pool is active: {change.reason}", "", True))
                self._emit(BalancerQuorumReached, size)
            else:
                text = f"the pool is inactive: {change.reason}"
                self._line(_Line("balancer_quorum_lost", text, "", False, logging.WARNING))
                self._emit(BalancerQuorumLost, size)

    def catch_up(self) -> None:
        """Log each line that was held back for a minute and still differs from the last line about its target."""
        for line in tuple(self._held.values()):
            if not self._warnings.only_counts(line.event, line.about):
                self._line(line)

    def _line(self, line: _Line) -> None:
        about, text = line.about, f"the balancer {self._name}: {line.text}"
        logged = not self._warnings.only_counts(line.event, about)
        self._warnings.say(line.event, text, about, level=line.level)
        if logged:
            (self._up.add if line.up else self._up.discard)(about)
        if (about in self._up) == line.up:
            self._held.pop(about, None)
        else:
            self._held[about] = line

    def _emit(
        self,
        kind: type[BalancerTargetReady | BalancerTargetLost | BalancerQuorumReached | BalancerQuorumLost],
        about: dict[str, object],
    ) -> None:
        if self._sink is not None:
            self._sink.emit(kind, **about)
