"""A broker for callers outside its loop: the common part of the faces for threads and for asyncio."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Unpack

import trio

from meshq.client import EventSink, MessageRoute
from meshq.errors import NotActiveError
from meshq.ids import NodeId
from meshq.message import PropertyValue
from meshq.node._broker import Broker
from meshq.node._service_in_thread import ServiceInThread
from meshq.node._settings import BrokerOptions
from meshq.notifications import Notification
from meshq.portal import LoopThread
from meshq.settings import Security, takes_settings
from meshq.statistics import BrokerStatistics


class BrokerFace(ABC):
    """The settings and figures of a broker whose loop runs in a thread of its own.

    Derived classes say how their callers wait.
    """

    _loop: LoopThread

    @takes_settings(Broker)
    def __init__(self, name: str, **settings: Unpack[BrokerOptions]) -> None:
        self._inner = Broker(name, **settings)
        env = settings.get("env")
        self._build(f"the broker {name!r}", env.clock if env is not None else None)

    @abstractmethod
    def _build(self, name: str, clock: trio.abc.Clock | None) -> None:
        """Build the loop, which has not started, and the block around the broker."""

    @property
    def name(self) -> str:
        """The broker's name."""
        return self._inner.name

    @property
    def security(self) -> Security | None:
        """The users, roles and permissions as given; None: every client may do everything."""
        return self._inner.security

    @property
    def state(self) -> str:
        """``new``, ``starting``, ``waiting``, ``active``, ``stopping``, ``stopped`` or ``failed``."""
        return self._inner.state

    @property
    def durable(self) -> bool:
        """Whether anything survives the process."""
        return self._inner.durable

    @property
    def node_id(self) -> NodeId:
        """The identity of the node, kept for life in the first file of its store.

        Raises:
            NotActiveError: it isn't known before the broker has started.
        """
        return self._inner.node_id

    @property
    def urls(self) -> list[str]:
        """The acceptors' URLs with the ports that are really bound; empty unless the node waits or is active."""
        return self._inner.urls

    def __repr__(self) -> str:
        return repr(self._inner)

    def service(self, name: str, *, kind: str | None = None) -> ServiceInThread:
        """Return the service of this name, for callers outside the broker's loop.

        ``kind``: the service's kind, ``"bridge"`` or ``"cluster_connection"``; required if services of several kinds
        have the name.

        Raises:
            NotFoundError: the broker has no such service.
            UsageError: services of several kinds have this name.
        """
        return ServiceInThread(self._inner.service(name, kind=kind), self._loop)

    def _check_active(self) -> None:
        if self.state != "active":
            raise NotActiveError(f"the broker {self.name!r} is {self.state}")

    def statistics(self) -> BrokerStatistics:
        """Return the contents and counters of the broker as a frozen record.

        Raises:
            NotActiveError: it has not started, or has stopped.
        """
        return self._loop.run_sync_if_open(self._inner.statistics)

    def explain_route(
        self, address: str, properties: Mapping[str, PropertyValue] | None = None, *, user: str | None = None
    ) -> MessageRoute:
        """Explain where a message to ``address`` would go on this node, and why; nothing is sent.

        Without ``properties`` it is asked of any message: filters then may or may not accept it.  ``user``: who would
        send it; None: a client in this process.

        Raises:
            SettingsError: a part of the message is not allowed.
            NotActiveError: it has not started, or has stopped.
        """
        return self._loop.run_sync_if_open(partial(self._inner.explain_route, address, properties, user=user))


def watch(broker: Broker, sink: EventSink[Notification]) -> None:
    """Pass the notifications of a broker to a sink until the broker ends."""
    broker._watch(sink)
