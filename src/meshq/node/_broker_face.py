"""A broker for callers outside its loop: the common part of the faces for threads and for asyncio."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial

import trio

from meshq import abc, limits
from meshq.client import MessageRoute
from meshq.directories import StoreDirectories
from meshq.ids import NodeId
from meshq.message import PropertyValue
from meshq.node._broker import Broker
from meshq.node._service_in_thread import ServiceInThread
from meshq.portal import LoopThread
from meshq.settings import Acceptor, AddressSettings, JournalSettings, Security
from meshq.statistics import BrokerStatistics


class BrokerFace(ABC):
    """The settings and figures of a broker whose loop runs in a thread of its own.

    Derived classes say how their callers wait.
    """

    _loop: LoopThread

    def __init__(
        self,
        name: str,
        *,
        data_dir: str | os.PathLike[str] | None,
        journal: JournalSettings | None = None,
        directories: StoreDirectories | None = None,
        acceptors: Sequence[str | Acceptor] = (),
        connectors: Mapping[str, str] | None = None,
        queues: Sequence[str] = (),
        address_settings: dict[str, AddressSettings] | None = None,
        security: Security | None = None,
        services: Sequence[abc.Service] = (),
        ha: abc.HAPolicy | None = None,
        node_id: bytes | None = None,
        memory_limit: int | None = None,
        stop_timeout: float = 10,
        transaction_timeout: float = limits.TRANSACTION_TIMEOUT_S,
        max_session_ttl: float = limits.SESSION_TTL_S,
        max_sessions_per_user: int | None = None,
        env: abc.Env | None = None,
    ) -> None:
        self._inner = Broker(
            name,
            data_dir=data_dir,
            journal=journal,
            directories=directories,
            acceptors=acceptors,
            connectors=connectors,
            queues=queues,
            address_settings=address_settings,
            security=security,
            services=services,
            ha=ha,
            node_id=node_id,
            memory_limit=memory_limit,
            stop_timeout=stop_timeout,
            transaction_timeout=transaction_timeout,
            max_session_ttl=max_session_ttl,
            max_sessions_per_user=max_sessions_per_user,
            env=env,
        )
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
