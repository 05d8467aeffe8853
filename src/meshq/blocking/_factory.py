"""The factory of clients for threads, which checks all settings first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from meshq import client as trio_client
from meshq.abc import Env
from meshq.blocking._client import Client
from meshq.client import ClientOptions, ClientSettings, FaceFactory
from meshq.discovery import DiscoveryGroup
from meshq.endpoint import Endpoint
from meshq.settings import takes_settings


class ClientFactory(FaceFactory):
    """A factory of clients of one broker, or of several over which its connections are spread.

    ``url``: ``tcp://host:port``, ``tls://host:port`` or ``(tcp://a:1,tcp://b:2)``, each with options after a ``?``; or
    where brokers announce themselves, as ``meshq.ClientFactory`` has it.  A broker in this process has clients of its
    own: ``meshq.blocking.Broker.client``.
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
        inner = trio_client.ClientFactory(url, env=env, **settings)
        super().__init__(inner, instead="a blocking broker in this process has client() for this")

    def connect(self) -> Client:
        """Create a client, to be used as ``with``; the client connects when its block is entered."""
        return Client(self._inner.connect())


@takes_settings(ClientSettings)
def connect(
    url: str | DiscoveryGroup | Sequence[Endpoint | str], *, env: Env | None = None, **settings: Unpack[ClientOptions]
) -> Client:
    """Create a client of the broker at ``url``, to be used as ``with``: a factory used once.

    Raises:
        SettingsError: the URL or a setting is not allowed.
    """
    return ClientFactory(url, env=env, **settings).connect()
