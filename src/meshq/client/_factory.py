"""The factory of clients, which checks settings and targets first."""

from __future__ import annotations

import logging
from typing import Unpack

from meshq.abc import Env
from meshq.client._client import Client
from meshq.client.link._change_log import ChangeLog
from meshq.client.link._connector import ClientTargets, ConnectTarget, InprocTarget, TcpTarget, TlsTarget
from meshq.client.link._discovered_targets import DiscoveredTopology, Turns
from meshq.client.link._peer_link import PeerLink
from meshq.client.link._targets_plan import FixedTopology, LastFirst
from meshq.client.session._cluster_link_channel import PeerEvents
from meshq.client.settings._settings import ClientOptions, ClientSettings
from meshq.client.settings._url import ClientUrl, parse_url
from meshq.client.settings._url_format import shown
from meshq.discovery import DiscoveryGroup
from meshq.endpoint import Endpoint
from meshq.env import real_env
from meshq.errors import SettingsError
from meshq.settings import takes_settings


class ClientFactory:
    """A factory of clients of one broker, or of one of several brokers tried in turn.

    ``url``: ``tcp://host:port``, ``tls://host:port``, ``inproc://name`` or ``(tcp://a:1,tcp://b:2)``, each
    with options after a ``?``; or where brokers announce themselves: ``udp://group:port``, ``multicast://name``,
    ``discovery:(...)``, or a ``DiscoveryGroup``, of which only the settings are used.
    The keywords are those of ``ClientSettings``; an option of the URL and a keyword may not both be given.
    """

    @takes_settings(ClientSettings)
    def __init__(self, url: str | DiscoveryGroup, *, env: Env | None = None, **settings: Unpack[ClientOptions]) -> None:
        parsed = _of_group(url) if isinstance(url, DiscoveryGroup) else parse_url(url)
        for name, value in settings.items():
            if name in parsed.options:
                raise SettingsError(name, "***" if name == "password" else value, "here or in the URL, not both")
        self.settings: ClientSettings = ClientSettings.build({**parsed.defaults, **parsed.options, **settings})
        self.endpoints: tuple[Endpoint, ...] = parsed.targets
        self._env = env if env is not None else real_env()
        # Of all the links that it makes.
        self._log = ChangeLog(logging.INFO)
        for endpoint in parsed.targets:
            # Seen now: a target that is not allowed must not be found out at the first failover.
            self._target(endpoint)
        self._heard_at = parsed.heard_at
        discovered = None
        if parsed.heard_at is not None:
            discovered = DiscoveredTopology(parsed.heard_at, self.settings, self._env)
        self._targets = ClientTargets(
            topology=discovered or FixedTopology(parsed.targets),
            policy=LastFirst(),
            connector=self._target,
            discovered=discovered,
            turns=Turns(self._env) if parsed.spread else None,
        )

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.endpoints)) if self._heard_at is None else self._heard_at.name
        return f"<ClientFactory {where}>"

    def _target(self, endpoint: Endpoint) -> ConnectTarget:
        if endpoint.scheme == "inproc":
            return InprocTarget(endpoint, self._env, self.settings.client_id or "")
        if endpoint.scheme == "tls":
            return TlsTarget(endpoint, self._env, self.settings.tls)
        if self.settings.tls is not None:
            raise SettingsError("url", str(endpoint), "tls:// or inproc:// only, as tls= is given")
        return TcpTarget(endpoint, self._env, insecure=self.settings.insecure)

    def connect(self) -> Client:
        """Create a client, to be used as ``async with``; the client connects when its block is entered."""
        return Client(self._targets, self.settings, self._env)

    def link(self, events: PeerEvents, *, label: str, instance: bytes) -> PeerLink:
        """A node's link to another node; it connects when it runs.

        ``label``: the node that links, for logs; ``instance``: this life of it.
        """
        return PeerLink(self._targets, self.settings, self._env, events, label=label, instance=instance, log=self._log)


def factory_of(url: str, setting: str, *, env: Env, **settings: Unpack[ClientOptions]) -> ClientFactory:
    """Make a factory for a URL that is the value of another setting.

    Raises:
        SettingsError: the URL or one of its options is not allowed; names that setting, and not what may be a password.
    """
    try:
        factory = ClientFactory(url, env=env, **settings)
        if not factory.endpoints:
            raise SettingsError("url", url, "a URL of one or more brokers; only clients discover them by a URL")
        return factory
    except SettingsError as error:
        allowed = error.allowed if error.setting == "url" else f"a URL with {error.setting} as {error.allowed}"
        raise SettingsError(setting, url, allowed, shown=repr(shown(url))) from error


def _of_group(group: DiscoveryGroup) -> ClientUrl:
    """Return a URL, as if read, that means a group."""
    defaults = {"initial_wait_timeout": group.settings.initial_wait_timeout}
    return ClientUrl(options={}, defaults=defaults, heard_at=group.settings, spread=True)


@takes_settings(ClientSettings)
def connect(url: str | DiscoveryGroup, *, env: Env | None = None, **settings: Unpack[ClientOptions]) -> Client:
    """Create a client of the broker at ``url``, to be used as ``async with``: a factory used once.

    ``url`` is what ``ClientFactory`` takes.

    Raises:
        SettingsError: the URL or a setting is not allowed.
    """
    return ClientFactory(url, env=env, **settings).connect()
