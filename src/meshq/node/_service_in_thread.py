"""A service of a broker whose loop runs in another thread, as the program around the broker asks it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from meshq.abc import Controllable, Service
from meshq.errors import UsageError
from meshq.loops import check_in_trio
from meshq.node._cluster_in_thread import ActiveCalls, LoopCalls, RunsSync
from meshq.portal import LoopThread
from meshq.statistics import BridgeStatistics

if TYPE_CHECKING:
    from meshq.abc import BalancerTarget
    from meshq.lb.balancer import BrokerBalancer
    from meshq.network import NetworkConnector, NetworkSettings, NetworkSubscription
    from meshq.statistics import BalancerRoute, BalancerStatistics


class ServiceInThread:
    """A service of a broker in another thread, returned by the broker's ``service``.

    Each call runs in the broker's loop.  A cluster connection has more calls: ``broker.cluster`` returns them.
    """

    def __init__(self, inner: Service, loop: LoopThread) -> None:
        self.name: str = inner.name
        self.kind: str = inner.kind
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    def statistics(self) -> BridgeStatistics:
        """Return the state and counters of the service.

        Raises:
            UsageError: the service has no counters.
        """
        return self._loop.run_sync_if_open(self._controllable().statistics)

    def pause(self) -> None:
        """Pause the service until ``resume``; twice is silent.

        Raises:
            UsageError: the service can't be paused.
        """
        self._loop.run_sync_if_open(self._controllable().pause)

    def resume(self) -> None:
        """Resume the service; twice is silent.

        Raises:
            UsageError: the service can't be paused.
        """
        self._loop.run_sync_if_open(self._controllable().resume)

    def _controllable(self) -> Controllable:
        if not isinstance(self._inner, Controllable):
            raise UsageError(f"the service {self.name!r} of the kind {self.kind!r} has no counters and no pause")
        return self._inner


class BalancerFigures:
    """The figures and filters of a balancer whose broker runs in another loop; the common part of all faces."""

    def __init__(self, inner: BrokerBalancer, loop: RunsSync) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._run_sync = ActiveCalls(loop).run_sync

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
            SettingsError: the key is no text.
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


class NetworkFigures:
    """The figures of a network connector whose broker runs in another loop; the common part of all faces."""

    def __init__(self, inner: NetworkConnector, loop: RunsSync) -> None:
        self.name: str = inner.name
        #: The settings of the connector.
        self.settings: NetworkSettings = inner.settings
        self._inner = inner
        self._run_sync = ActiveCalls(loop).run_sync

    def __repr__(self) -> str:
        return repr(self._inner)

    def bridges(self) -> Sequence[BridgeStatistics]:
        """Return the state and the counters of each link.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._run_sync(self._inner.bridges)

    def subscriptions(self) -> tuple[NetworkSubscription, ...]:
        """Return the demand at the other brokers that this connector satisfies.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._run_sync(self._inner.subscriptions)


class NetworkConnectorInThread(NetworkFigures):
    """A network connector of a ``BrokerInThread``, returned by its ``network``.

    What a broker is given as a service is ``meshq.NetworkConnector``.
    """

    def __init__(self, inner: NetworkConnector, broker: LoopCalls) -> None:
        super().__init__(inner, broker)
        self._broker = broker

    async def wait_for(
        self,
        *,
        bridges: int = 1,
        queue: str | None = None,
        consumers: int = 0,
        timeout: float = math.inf,  # noqa: ASYNC109
    ) -> None:
        """Return when so many links are up, and so many consumers of a queue are known behind them to which messages
        are forwarded; with 0 ``consumers`` when none is left.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed.
            CallTimeoutError: the time is up; the error says how far it came.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("NetworkConnector")
        wait = partial(self._inner.wait_for, bridges=bridges, queue=queue, consumers=consumers, timeout=timeout)
        await self._broker.call(wait)
