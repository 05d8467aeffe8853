"""Acceptors: the endpoints where a broker listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from meshq.endpoint import Endpoint, shown_options
from meshq.errors import SettingsError
from meshq.settings._tls import TLS, check_tls
from meshq.settings._validators import is_bool


def _tls(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_tls(attribute.name, value)


def _protocols(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or tuple(value) != ("meshq",):
        raise SettingsError("protocols", value, "['meshq']: the one protocol that a broker speaks")
    return ("meshq",)


def _balancer(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not str or not value):
        raise SettingsError(attribute.name, value, "the name of a BrokerBalancer of the broker, or None")


def _discovery(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not str or "://" not in value):
        raise SettingsError(attribute.name, value, "a URL, such as multicast://NAME, or None")


@attrs.frozen
class Acceptor:
    """An acceptor of a broker: ``tcp://HOST:PORT``, or ``tls://HOST:PORT`` with ``tls``; port 0 for any free port.

    ``tls``: ``TLS(certificate=...)``, or an ``ssl.SSLContext`` for a server.
    Plaintext beyond the loopback device needs ``insecure=True``, and so does TLS there without ``security``.
    ``protocols``: what is spoken there; ``meshq`` is the only one that there is.
    ``discovery``: where the acceptor is announced, ``multicast://NAME``, ``udp://GROUP:PORT`` or ``zeroconf://NAME``,
    each with ``?broadcast_period=2&bind_address=HOST``; None: nowhere.
    ``redirect_to``: the name of the balancer that decides which clients go on to another broker; None: all stay.
    ``insecure``, ``protocols`` and ``redirect_to`` may also be options of the URL:
    ``?insecure=true&protocols=meshq&redirect_to=NAME``.
    """

    url: str
    tls: object = attrs.field(default=None, kw_only=True, validator=_tls)
    insecure: bool = attrs.field(default=False, kw_only=True, validator=is_bool)
    protocols: tuple[str, ...] = attrs.field(default=("meshq",), kw_only=True, converter=_protocols)
    discovery: str | None = attrs.field(default=None, kw_only=True, validator=_discovery)
    redirect_to: str | None = attrs.field(default=None, kw_only=True, validator=_balancer)
    endpoint: Endpoint = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        endpoint = Endpoint.parse(self.url)
        insecure, protocols, redirect_to = self.insecure, self.protocols, self.redirect_to
        for key, value in endpoint.options:
            if key == "insecure" and value in ("true", "false"):
                insecure = value == "true"
            elif key == "protocols":
                # The protocol that acceptors of the ActiveMQ documentation call CORE has this one in its place.
                protocols = _protocols(["meshq" if one == "CORE" else one for one in value.split(",")])
            elif key in ("redirect_to", "redirect-to") and value:
                if redirect_to not in (None, value):
                    raise SettingsError("redirect_to", value, f"one balancer; {redirect_to!r} is given as well")
                redirect_to = value
            else:
                allowed = "the options insecure=true|false, protocols=meshq and redirect_to=NAME"
                raise SettingsError("acceptor", shown_options(self.url), allowed)
        if endpoint.scheme not in ("tcp", "tls"):
            raise SettingsError("acceptor", self.url, "tcp://HOST:PORT or tls://HOST:PORT")
        if (endpoint.scheme == "tls") is not (self.tls is not None):
            raise SettingsError("acceptor", self.url, "tls://HOST:PORT with tls=, or tcp://HOST:PORT without")
        if type(self.tls) is TLS and self.tls.certificate is None:
            raise SettingsError("tls", self.tls, "TLS with a certificate: a broker shows one")
        if endpoint.scheme == "tcp" and not endpoint.loopback and not insecure:
            raise SettingsError("acceptor", self.url, "a loopback host, or insecure=True, or tls://")
        object.__setattr__(self, "endpoint", endpoint)
        object.__setattr__(self, "insecure", insecure)
        object.__setattr__(self, "protocols", protocols)
        object.__setattr__(self, "redirect_to", redirect_to)
