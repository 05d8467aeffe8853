"""The URI of a network connector: where the other brokers are."""

from __future__ import annotations

from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

_STATIC = "static:"
_ALLOWED = "static:(tcp://host:port,…), with the URL of each other broker"


def urls_of(uri: object) -> tuple[str, ...]:
    """Return the URLs in a URI of the form ``static:(url,url)``, each once.

    Raises:
        SettingsError: the text is no such URI.
    """
    # Options of a URL may be secrets.
    shown = None if type(uri) is not str else "***" if "@" in uri or "?" in uri else repr(uri)
    if type(uri) is not str or not uri.startswith(_STATIC):
        raise SettingsError("uri", uri, f"{_ALLOWED} (multicast, zeroconf and failover to come)", shown=shown)
    inner = uri.removeprefix(_STATIC).removeprefix("//")
    if not (inner.startswith("(") and inner.endswith(")")):
        raise SettingsError("uri", uri, _ALLOWED, shown=shown)
    urls = tuple(dict.fromkeys(url.strip() for url in inner[1:-1].split(",")))
    for url in urls:
        try:
            Endpoint.parse(url)
        except SettingsError as error:
            raise SettingsError("uri", uri, _ALLOWED, shown=shown) from error
    return urls
