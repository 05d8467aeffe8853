"""The common part of the factories of clients for asyncio and for threads."""

from __future__ import annotations

from meshq.abc import BalancerPolicy
from meshq.client._factory import ClientFactory
from meshq.client.settings._settings import ClientSettings
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError


class FaceFactory:
    """The part of a factory of clients that is the same in each face: settings, targets and policy are its trio
    factory's.

    ``instead``: what a broker in this process has for its clients; its URL is refused.
    """

    def __init__(self, inner: ClientFactory, *, instead: str) -> None:
        self._inner = inner
        self.endpoints: tuple[Endpoint, ...] = inner.endpoints
        for endpoint in self.endpoints:
            if endpoint.scheme == "inproc":
                raise SettingsError("url", str(endpoint), f"tcp:// or tls:// ({instead})")

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def settings(self) -> ClientSettings:
        """The settings of its clients."""
        return self._inner.settings

    @property
    def load_balancing(self) -> str | type[BalancerPolicy] | BalancerPolicy | None:
        """The policy by which connections are spread over nodes; may be set until the first ``connect``.

        Later that is a ``UsageError``, and a ``SettingsError`` with what is no policy.
        """
        return self._inner.load_balancing

    @load_balancing.setter
    def load_balancing(self, policy: str | type[BalancerPolicy] | BalancerPolicy | None) -> None:
        self._inner.load_balancing = policy
