"""The factory of clients, which checks settings and targets first."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final, Unpack, cast

import attrs

from meshq.abc import BalancerPolicy, Env
from meshq.client._client import Client
from meshq.client._fanout_client import FanoutClient, FanoutPlaces
from meshq.client.link._announcement_plan import AnnouncementPlan
from meshq.client.link._balanced_order import NodeChoice
from meshq.client.link._change_log import ChangeLog
from meshq.client.link._connector import ClientTargets, ConnectTarget, InprocTarget, TcpTarget, TlsTarget
from meshq.client.link._discovered_targets import DiscoveredTopology
from meshq.client.link._log_link import LogLink
from meshq.client.link._login import Login
from meshq.client.link._node_book_machine import NodeBook, ToldPlaceRules
from meshq.client.link._peer_link import PeerLink
from meshq.client.link._probe import BrokerProbe
from meshq.client.link._targets_plan import FixedTopology, LastFirst
from meshq.client.session._cluster_link_channel import PeerEvents
from meshq.client.settings._fanout_rules import FanoutRules
from meshq.client.settings._settings import ClientOptions, ClientSettings
from meshq.client.settings._url import OF_ONE_BROKER, ClientUrl, parse_url
from meshq.client.settings._url_format import shown
from meshq.discovery import DiscoveryGroup
from meshq.endpoint import Endpoint
from meshq.env import default_env
from meshq.errors import SettingsError, UsageError
from meshq.settings import takes_settings
from meshq.wire import Replicate, Role

#: Settings that a link between nodes has not.
_NOT_OF_LINKS: Final = ("use_topology", "load_balancing")


class ClientFactory:
    """A factory of clients of one broker, or of several over which its connections are spread.

    ``url``: ``tcp://host:port``, ``tls://host:port``, ``inproc://name`` or ``(tcp://a:1,tcp://b:2)``, each
    with options after a ``?``; or where brokers announce themselves: ``udp://group:port``, ``multicast://name``,
    ``zeroconf://name``, ``discovery:(...)``, or a ``DiscoveryGroup``, of which only the settings are used.
    A list of URLs or of ``Endpoint(scheme, host, port)`` is the same as the URL that lists them.
    The keywords are those of ``ClientSettings``; an option of the URL and a keyword may not both be given.
    """

    @takes_settings(ClientSettings)
    def __init__(
        self,
        url: str | DiscoveryGroup | Sequence[Endpoint | str],
        *,
        env: Env | None = None,
        **settings: Unpack[ClientOptions],
    ) -> None:
        parsed = _parsed(url)
        if parsed.fanout is not None:
            _check_fanout(settings)
        for name, value in settings.items():
            if name in parsed.options:
                raise SettingsError(name, "***" if name == "password" else value, "here or in the URL, not both")
        self._settings = ClientSettings.build({**parsed.defaults, **parsed.options, **settings})
        self.endpoints: tuple[Endpoint, ...] = parsed.targets
        self._env = env if env is not None else default_env()
        # Of all the links that it makes.
        self._log = ChangeLog(logging.INFO)
        for endpoint in parsed.targets:
            # Seen now: a target that is not allowed must not be found out at the first failover.
            self._target(endpoint)
        self._heard_at = parsed.heard_at
        #: The rules of clients that send to all the brokers; None: a client has a session at one of them.
        self.fanout: FanoutRules | None = parsed.fanout
        discovered = None
        if parsed.heard_at is not None:
            discovered = DiscoveredTopology(parsed.heard_at, self.settings, self._env, parsed.place_options)
        # As they are for a node's link, which stays with the nodes that it was given: the cluster knows the others.
        self._link_targets = ClientTargets(
            topology=discovered or FixedTopology(parsed.targets),
            policy=LastFirst(),
            connector=self._target,
            discovered=discovered,
        )
        self._book = self._make_book(parsed)
        # Those of its clients, from its first use on.
        self._targets: ClientTargets | None = None

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

    @property
    def settings(self) -> ClientSettings:
        """The settings of its clients."""
        return self._settings

    @property
    def load_balancing(self) -> str | type[BalancerPolicy] | BalancerPolicy | None:
        """The policy by which connections are spread over nodes; may be set until the first ``connect``.

        Later that is a ``UsageError``, and a ``SettingsError`` with what is no policy.
        """
        return self.settings.load_balancing

    @load_balancing.setter
    def load_balancing(self, policy: str | type[BalancerPolicy] | BalancerPolicy | None) -> None:
        if self._targets is not None:
            raise UsageError("the policy of a factory is given before its first use")
        self._settings = attrs.evolve(self._settings, load_balancing=policy)

    def _make_book(self, parsed: ClientUrl) -> NodeBook | None:
        """Return the book of the cluster's nodes; None: only places of the URL are dialed."""
        schemes = {endpoint.scheme for endpoint in parsed.targets}
        if parsed.heard_at is not None:
            schemes = {"tls" if self.settings.tls is not None else "tcp"}
        if not self.settings.use_topology or "inproc" in schemes:
            for name in parsed.names:
                raise SettingsError("name", name, "a name where the topology counts: with use_topology, over a network")
            # Who means a broker of this process does not mean one of another process.
            return None
        options = {endpoint.options for endpoint in parsed.targets} or {tuple(parsed.place_options)}
        return NodeBook(
            ToldPlaceRules(
                schemes=frozenset(schemes),
                insecure=self.settings.insecure,
                options=options.pop() if len(options) == 1 else (),
                names=parsed.names,
            )
        )

    def connect(self) -> Client:
        """Create a client, to be used as ``async with``; the client connects when its block is entered."""
        if self.fanout is not None:
            places = FanoutPlaces(targets=self._link_targets, rules=self.fanout, settings=self.settings, env=self._env)
            # It has the calls of a client, of which it refuses most, and nothing of a client's session.
            return cast("Client", FanoutClient(places))
        if self._targets is None:
            policy, key, book = self.settings.load_balancing, self.settings.client_id or "", self._book
            choice = NodeChoice(policy, self._env, key=key, book=book)
            self._targets = attrs.evolve(self._link_targets, choice=choice, book=book)
        return Client(self._targets, self.settings, self._env)

    def probe(self, *, label: str, role: Role = "client", instance: bytes = b"") -> BrokerProbe:
        """A probe of the broker at the first place of the URL.

        ``label``: who asks, for logs; ``role``, ``instance``: as of a node that links.
        """
        settings = self.settings
        login = Login(self._env.entropy.token, settings.user, settings.password, role=role, instance=instance)
        return BrokerProbe(self._target(self.endpoints[0]), login, label)

    def log_link(self, wanted: Replicate, *, instance: bytes) -> LogLink:
        """A link by which a node follows the log of the one at the first place of the URL; it connects when it runs.

        ``wanted``: the request; ``instance``: this life of the node that asks.
        """
        settings = self.settings
        login = Login(self._env.entropy.token, settings.user, settings.password, role="peer", instance=instance)
        return LogLink(self._target(self.endpoints[0]), login, wanted)

    def link(
        self,
        events: PeerEvents,
        *,
        label: str,
        instance: bytes,
        announcements: AnnouncementPlan,
        window: float = math.inf,
    ) -> PeerLink:
        """A node's link to another node; it connects when it runs.

        ``label``: the node that links, for logs; ``instance``: this life of it; ``announcements``: when it says once
        more who it is; ``window``: bytes of messages that are under way.
        """
        return PeerLink(
            self._link_targets,
            self.settings,
            self._env,
            events,
            label=label,
            instance=instance,
            log=self._log,
            window=window,
            announcements=announcements,
        )


def factory_of(url: str, setting: str, *, env: Env, **settings: Unpack[ClientOptions]) -> ClientFactory:
    """Make a factory for a URL that is the value of another setting.

    Raises:
        SettingsError: the URL or one of its options is not allowed; names that setting, and not what may be a password.
    """
    try:
        if parse_url(url).fanout is not None:
            raise SettingsError("url", url, "a URL of one or more brokers; only clients send to all of them")
        settings["use_topology"] = False
        settings["load_balancing"] = "first_element"
        factory = ClientFactory(url, env=env, **settings)
        if not factory.endpoints:
            raise SettingsError("url", url, "a URL of one or more brokers; only clients discover them by a URL")
        return factory
    except SettingsError as error:
        allowed = error.allowed if error.setting == "url" else f"a URL with {error.setting} as {error.allowed}"
        if error.setting in _NOT_OF_LINKS:
            allowed = f"a URL without {error.setting}: a link keeps to the nodes that it names"
        raise SettingsError(setting, url, allowed, shown=repr(shown(url))) from error


def _check_fanout(settings: ClientOptions) -> None:
    """Refuse keywords by which one broker is chosen."""
    for name in OF_ONE_BROKER.intersection(settings):
        raise SettingsError(name, settings[name], "left out with fanout:, which sends to all brokers")  # type: ignore[literal-required]


def _parsed(url: str | DiscoveryGroup | Sequence[Endpoint | str]) -> ClientUrl:
    """Return the targets and options of a factory as if read from a URL."""
    if isinstance(url, DiscoveryGroup):
        return _of_group(url)
    if isinstance(url, str) or not isinstance(url, Sequence):
        return parse_url(url)
    for one in url:
        if not isinstance(one, Endpoint | str):
            raise SettingsError("url", one, "an Endpoint, or a URL, for each broker")
    return parse_url(f"({','.join(map(str, url))})")


def _of_group(group: DiscoveryGroup) -> ClientUrl:
    """Return a URL, as if read, that means a group."""
    defaults = {"initial_wait_timeout": group.settings.initial_wait_timeout}
    return ClientUrl(options={}, defaults=defaults, heard_at=group.settings)


@takes_settings(ClientSettings)
def connect(
    url: str | DiscoveryGroup | Sequence[Endpoint | str], *, env: Env | None = None, **settings: Unpack[ClientOptions]
) -> Client:
    """Create a client of the broker at ``url``, to be used as ``async with``: a factory used once.

    ``url`` is what ``ClientFactory`` takes.

    Raises:
        SettingsError: the URL or a setting is not allowed.
    """
    return ClientFactory(url, env=env, **settings).connect()
