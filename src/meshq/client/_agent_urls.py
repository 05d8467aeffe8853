"""The URL of an agent for connectors, which link to every broker that it yields: listed ones, or those announced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from meshq.client.link._announced_plan import PlaceRules
from meshq.client.settings._url import parse_url
from meshq.client.settings._url_format import Url, shown
from meshq.discovery import ENDPOINT_SCHEMES, DiscoverySettings
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

_ALLOWED: Final = (
    "static:(tcp://host:port,…), with the URL of each other broker, failover:(tcp://host:port,…) for one of them,"
    " multicast://NAME, udp://GROUP:PORT or zeroconf://NAME, or one of these as discovery:(…)"
)


@attrs.frozen(kw_only=True)
class Agent:
    """The brokers that the URL of an agent names, or the place where they announce themselves.

    ``urls``: the URL of each broker, or of several of which one is linked.  ``heard_at``: where brokers announce
    themselves; None: they are listed.  ``insecure`` and ``options``: of each place that is heard of.
    """

    urls: tuple[str, ...] = ()
    heard_at: DiscoverySettings | None = None
    insecure: bool = False
    options: tuple[tuple[str, str], ...] = ()

    def urls_at(self, brokers: Iterable[Sequence[str]], *, tls: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the URL of each announced broker, and the places that are not dialed, with the reasons.

        ``brokers``: the places of each; ``tls``: whether the links are over TLS.
        """
        rules = PlaceRules(tls=tls, insecure=self.insecure, options=self.options)
        each = [rules.places([places]) for places in brokers]
        urls = [_url_of([str(place) for place in one.dialed], self.insecure) for one in each if one.dialed]
        return tuple(dict.fromkeys(urls)), tuple(text for one in each for text in one.refused)


def _url_of(places: Sequence[str], insecure: bool) -> str:
    url = places[0] if len(places) == 1 else f"({','.join(places)})"
    return f"{url}{'&' if '?' in url and len(places) == 1 else '?'}insecure=true" if insecure else url


def agent_of(uri: object) -> Agent:
    """Read the URL of an agent.

    Raises:
        SettingsError: it is none, or has an option that stands elsewhere.
    """
    # Options of a URL may be secrets.
    hidden = None if type(uri) is not str else "***" if "@" in uri or "?" in uri else repr(uri)
    try:
        return _agent(Url.parse(uri))  # type: ignore[arg-type]
    except SettingsError as error:
        known = error.setting in ("url", "uri")
        allowed = _ALLOWED if known else f"{error.setting} as {error.allowed}"
        if known and "@" in str(uri):
            allowed = f"{_ALLOWED}; without a user and a password, which are user= and password= of the connector"
        raise SettingsError("uri", uri, allowed, shown=hidden) from error


def _agent(read: Url) -> Agent:
    scheme = read.scheme.lower()
    if scheme == "discovery" and len(read.inside) == 1:
        inner = read.inside[0]
        both = "&".join(filter(None, (inner.query, read.query)))
        return _agent(attrs.evolve(inner, query=both or None))
    if scheme == "static" and read.bracketed:
        return Agent(urls=tuple(dict.fromkeys(_listed(one, read.query) for one in read.inside)))
    if scheme == "failover" and read.bracketed:
        return Agent(urls=(_listed(read, None),))
    if scheme not in ENDPOINT_SCHEMES or read.inside:
        raise SettingsError("url", shown(str(read)), _ALLOWED)
    found = parse_url(str(read))
    for name in found.options:
        if name != "insecure":
            raise SettingsError(name, "***", f"{name}= of the connector, not in its uri")
    insecure = bool(found.options.get("insecure", False))
    return Agent(heard_at=found.heard_at, insecure=insecure, options=found.place_options)


def _listed(one: Url, query: str | None) -> str:
    """Return the URL of a broker in a list, or of several of which one is linked.  ``query``: of those without one."""
    one = attrs.evolve(one, query=one.query if one.query is not None else query)
    if one.scheme.lower() == "failover" and one.bracketed and one.inside:
        for place in one.inside:
            Endpoint.parse(str(place))
        return str(attrs.evolve(one, scheme="", slashes=False))
    Endpoint.parse(str(one).strip())
    return str(one).strip()
