"""Endpoints: ``tcp://host:port?key=value`` as an object, and back."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import attrs

from meshq.address import encodable
from meshq.errors import SettingsError

#: Schemes that name one endpoint.
SCHEMES = ("tcp", "tls", "inproc")
#: A place that others are told: the longest name of a host, with scheme and port.
PLACE_CHARACTERS_MAX = 280
#: What is listened at, and never dialed.
_WILDCARDS = ("0.0.0.0", "::")
_NOT_IN_HOSTS = frozenset(" ,()")
#: What a text is that can be sent and printed.
TEXT = "text that can be encoded, without half a character"
_ALLOWED = "tcp://HOST:PORT, tls://HOST:PORT or inproc://NAME"


@attrs.frozen
class Endpoint:
    """An endpoint.  For ``inproc`` the host is the broker's name and the port 0."""

    scheme: str
    host: str
    port: int
    #: Query keys and values, as written, in order.
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read a URL.

        Raises:
            SettingsError: it isn't one, or of a scheme that isn't known.
        """
        if type(url) is not str:
            raise SettingsError("url", url, _ALLOWED)
        # A user, a password and options may be secrets, and an error is read by many.
        before, at, rest = shown_options(url).rpartition("@")
        scheme, slashes, _ = before.partition("//")
        shown = (scheme + slashes if slashes else "") + "***@" + rest if at else rest
        if not encodable(url):
            raise SettingsError("url", half_shown(shown), TEXT)
        try:
            parts = urlsplit(url)
            port = parts.port
            host = parts.hostname or ""
        except ValueError as error:
            # Of a number, only that it is too large is wrong with it.
            range_ = ", with a port of 0 to 65,535" if shown.rpartition(":")[2].rstrip("/?*").isdecimal() else ""
            raise SettingsError("url", shown, _ALLOWED + range_) from error
        if parts.scheme not in SCHEMES or parts.path not in ("", "/") or parts.fragment or parts.username is not None:
            raise SettingsError("url", shown, _ALLOWED)
        try:
            # Acceptors of the ActiveMQ documentation have a semicolon between options.
            query = parts.query.replace(";", "&")
            options = tuple(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        except ValueError as error:
            raise SettingsError("url", shown, "a query of key=value pairs") from error
        if parts.scheme == "inproc":
            # A broker's name keeps its capitals, which the host of other URLs has not.
            host = parts.netloc
            port = 0 if host and port is None else None
        if not host or port is None:
            raise SettingsError("url", shown, _ALLOWED)
        return cls(parts.scheme, host, port, options)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.scheme == "inproc" or self.host in ("localhost", "::1") or _loopback_v4(self.host)

    @property
    def wildcard(self) -> bool:
        """Whether the host is a wildcard, which stands for every address of a machine."""
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            # The system reads numbers without points, too.
            return self.host == "0"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = f"{self.scheme}://{host}" if self.scheme == "inproc" else f"{self.scheme}://{host}:{self.port}"
        return f"{where}?{urlencode(self.options, quote_via=quote)}" if self.options else where


def shown_options(url: str) -> str:
    """Shorten a URL for errors: the options are left out."""
    place, mark, _ = url.partition("?")
    return f"{place}?***" if mark else place


def half_shown(text: str) -> str:
    """Return a text for errors, with each half of a character as its number: an error can always be printed."""
    return text.encode(errors="backslashreplace").decode()


def _loopback_v4(host: str) -> bool:
    parts = host.split(".")
    # A number of thousands of digits can't be read at all.
    numbers = all(part.isdecimal() and len(part) <= 3 and int(part) <= 255 for part in parts)
    return len(parts) == 4 and parts[0] == "127" and numbers


def told_place(url: str) -> str:
    """Return the place of a URL that others may be told, without options; empty: none that others can dial."""
    try:
        endpoint = Endpoint.parse(url)
    except SettingsError:
        return ""
    if endpoint.scheme != "inproc" and (endpoint.host in _WILDCARDS or not endpoint.port):
        return ""
    # Hosts come into logs and into lists of URLs.
    if not endpoint.host.isprintable() or set(endpoint.host) & _NOT_IN_HOSTS:
        return ""
    place = str(attrs.evolve(endpoint, options=()))
    return place if len(place) <= PLACE_CHARACTERS_MAX else ""
