"""A balancer of a broker in a thread, as tasks of its host ask it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from meshq.loops import check_in_trio
from meshq.node._cluster_in_thread import LoopCalls, RunsSync

if TYPE_CHECKING:
    from meshq.abc import BalancerTarget
    from meshq.lb.balancer import BrokerBalancer
    from meshq.statistics import BalancerRoute, BalancerStatistics


class BalancerFigures:
    """The figures and filters of a balancer whose broker runs in another loop; the common part of all faces."""

    def __init__(self, inner: BrokerBalancer, loop: RunsSync) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._run_sync = loop.run_sync

    def __repr__(self) -> str:
        return repr(self._inner)

    def statistics(self) -> BalancerStatistics:
        """Return the state, the counters and the targets as a frozen record.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._run_sync(self._inner.statistics)

    def explain_route(self, key: str) -> BalancerRoute:
        """Explain where a client with a key would go now, and why; nothing changes.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._run_sync(partial(self._inner.explain_route, key))

    def set_local_target_filter(self, text: str | None) -> None:
        """Set the filter of the keys that stay here, for connections from now on, in this life of the broker.

        Raises:
            SettingsError: it is no expression, or one that could take long; or None where there is no pool.
            NotActiveError: the broker isn't active.
        """
        self._run_sync(partial(self._inner.set_local_target_filter, text))

    def set_target_key_filter(self, text: str | None) -> None:
        """Set the filter of keys, for connections from now on, in this life of the broker; no key is remembered.

        Raises:
            SettingsError: it is no expression, or one that could take long.
            NotActiveError: the broker isn't active.
        """
        self._run_sync(partial(self._inner.set_target_key_filter, text))


class BrokerBalancerInThread(BalancerFigures):
    """A balancer of a ``BrokerInThread``, returned by its ``balancer``.

    What a broker is given as a service is ``meshq.BrokerBalancer``.
    """

    def __init__(self, inner: BrokerBalancer, broker: LoopCalls) -> None:
        super().__init__(inner, broker)
        self._broker = broker

    async def target(self, key: str) -> BalancerTarget | None:
        """Return the target of a key, as for a client that has it; None after ``quorum_timeout`` if there is none.

        Checkpoint: always.
        Cancellation: nothing is left.
        Raises:
            NotActiveError: the broker isn't active.
        """
        check_in_trio("BrokerBalancer")
        return cast("BalancerTarget | None", await self._broker.call(partial(self._inner.target, key)))
