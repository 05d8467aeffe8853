"""The grammar of a client's URL: one target, a list in brackets, or a scheme around other URLs.

::

    url   = place / list / outer
    place = scheme "://" text [query]              ; tcp://host:1?name=a · udp://231.7.7.7:9876
    list  = "(" url *("," url) ")" [query]         ; (tcp://a:1,tcp://b:2)?reconnect_attempts=5
    outer = scheme ":" ["//"] (list / url)         ; discovery:(static:(tcp://a:1))?x=1 · fanout://multicast://g
    query = "?" key "=" value *(("&" / ";") ...)

A query belongs to the innermost thing that it stands behind.  What is read is written as the same again, letter by
letter.  Which schemes and options mean something, and what, is said elsewhere.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

import attrs

from meshq.address import encodable
from meshq.endpoint import TEXT, half_shown
from meshq.errors import SettingsError
from meshq.limits import URL_DEPTH_MAX

ALLOWED: Final = (
    "tcp://HOST:PORT, tls://HOST:PORT, inproc://NAME, a list (URL,URL,...), udp://GROUP:PORT, multicast://NAME,"
    " zeroconf://NAME, static:(URL,...), discovery:(AGENT) or fanout:(AGENT), each with ?key=value&..."
)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
#: The characters that end a target or a query inside brackets.
_TEXT: Final = re.compile(r"[^(),?]*")
_QUERY: Final = re.compile(r"[^(),]*")


@attrs.frozen
class Url:
    """A URL, read."""

    #: Empty for a mere list.
    scheme: str
    #: Whether ``//`` stands behind the scheme.
    slashes: bool
    #: The text of a place; empty if there are others inside.
    place: str = ""
    inside: tuple[Url, ...] = ()
    #: Whether what is inside stands in brackets.
    bracketed: bool = False
    #: As it is written, without the question mark; None: there is none.
    query: str | None = None

    @classmethod
    def parse(cls, text: str) -> Url:
        """Read a URL.

        Raises:
            SettingsError: it isn't one.
        """
        if type(text) is not str:
            raise SettingsError("url", text, ALLOWED)
        if not encodable(text):
            raise SettingsError("url", half_shown(shown(text)), TEXT)
        found, end = _read(text, 0, 0)
        if end != len(text):
            raise _refusal(text)
        return found

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Keys and values of the query, in order.

        Raises:
            SettingsError: it is no query.
        """
        return options_of(self.query or "")

    def __str__(self) -> str:
        head = f"{self.scheme}:" + "//" * self.slashes if self.scheme else ""
        inside = ",".join(map(str, self.inside))
        body = f"({inside})" if self.bracketed else inside or self.place
        return head + body + (f"?{self.query}" if self.query is not None else "")


def options_of(query: str) -> tuple[tuple[str, str], ...]:
    """Keys and values; between them ``&``, or ``;`` as acceptors of the ActiveMQ documentation have it.

    Raises:
        SettingsError: it is no query.  What is in it is not shown: a password may be.
    """
    try:
        return tuple(parse_qsl(query.replace(";", "&"), keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise SettingsError("url", "?***", "a query of key=value pairs") from error


def shown(text: str) -> str:
    """Shorten a URL for errors: without user, password and options, which may hold secrets."""
    *before, last = text.partition("?")[0].split("@")
    return "".join(part[: max(map(part.rfind, "/(),")) + 1] + "***@" for part in before) + last


def _read(text: str, at: int, depth: int) -> tuple[Url, int]:
    """A URL, and where it ends."""
    if depth > URL_DEPTH_MAX:
        raise _refusal(text)
    matched = _SCHEME.match(text, at)
    scheme, slashes = (matched[1], matched[2] is not None) if matched is not None else ("", False)
    at = matched.end() if matched is not None else at
    if text.startswith("(", at):
        inside, at = _read_list(text, at, depth)
        query, at = _read_query(text, at, depth)
        return Url(scheme, slashes, inside=inside, bracketed=True, query=query), at
    if not scheme:
        raise _refusal(text)
    within = _SCHEME.match(text, at)
    # Behind slashes a name and a colon are a host, unless what follows says otherwise.
    if within is not None and (not slashes or "://" in _text(text, at) or text.startswith("(", within.end())):
        inner, at = _read(text, at, depth + 1)
        return Url(scheme, slashes, inside=(inner,)), at
    place = _text(text, at)
    query, at = _read_query(text, at + len(place), depth)
    return Url(scheme, slashes, place=place, query=query), at


def _text(text: str, at: int) -> str:
    matched = _TEXT.match(text, at)
    return matched[0] if matched is not None else ""


def _read_list(text: str, at: int, depth: int) -> tuple[tuple[Url, ...], int]:
    inside: list[Url] = []
    while True:
        at += 1
        while text.startswith(" ", at):
            # Who writes a list by hand leaves room between its items.
            at += 1
        found, at = _read(text, at, depth + 1)
        inside.append(found)
        if text.startswith(")", at):
            return tuple(inside), at + 1
        if not text.startswith(",", at):
            raise _refusal(text)


def _read_query(text: str, at: int, depth: int) -> tuple[str | None, int]:
    if not text.startswith("?", at):
        return None, at
    matched = _QUERY.match(text, at + 1) if depth else None
    query = matched[0] if matched is not None else text[at + 1 :]
    return query, at + 1 + len(query)


def _refusal(text: str) -> SettingsError:
    return SettingsError("url", shown(text), ALLOWED)
