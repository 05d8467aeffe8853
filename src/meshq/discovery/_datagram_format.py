"""The bytes of an announcement (docs/formats/discovery.md), and the reasons why bytes are no announcement.

Whoever can send to a multicast group can send anything.  So decoding is strict: each rule of the format is checked,
nothing is guessed, and the result of bad bytes is a reason to count, never an exception.
"""

from __future__ import annotations

import hmac
import struct
from hashlib import sha256
from typing import Final, Literal

import attrs

from meshq import limits
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError, UsageError
from meshq.ids import IDENTITY_BYTES

MAGIC: Final = b"MQDA"
VERSION: Final = 1
SIGNED: Final = 1
#: Magic, version, flags, number of pairs, node id, instance, beginning of the life, sequence, period, size of the name.
_HEAD: Final = struct.Struct(f"<4sBBH{IDENTITY_BYTES}s{IDENTITY_BYTES}sQQIH")
_SIZE: Final = struct.Struct("<H")
CHECK_BYTES: Final = 32
#: Schemes of connectors that other machines can dial.
_SCHEMES: Final = ("tcp", "tls")
_NOT_IN_HOSTS: Final = frozenset(" ,()")

#: The reasons for which a datagram is refused, each of which has a counter.
RefusalReason = Literal[
    "oversized",
    "foreign",
    "newer_version",
    "malformed",
    "unsigned",
    "forged",
    "replayed",
    "stale_life",
    "address_taken",
    "too_many",
]


@attrs.frozen
class ConnectorPair:
    """The connectors of one announced entry: of the active node, and of its backup; ``backup`` may be empty."""

    primary: str
    backup: str = ""


@attrs.frozen(kw_only=True)
class Announcement:
    """The content of one datagram: a node, one life of the node, and the connectors by which the node is reached.

    ``instance``: the random number of the life; ``began_ms``: the beginning of the life, on the clock of the node.
    ``sequence``: the number of the announcement in the life, from 1.  ``period_ms``: the time until the next one.
    """

    node_id: bytes
    instance: bytes
    began_ms: int
    sequence: int
    period_ms: int
    name: str
    connectors: tuple[ConnectorPair, ...]


@attrs.frozen
class RefusedDatagram:
    """A datagram that changes nothing: the reason, and a text for the log."""

    reason: RefusalReason
    text: str


def announced_connector(url: str) -> str:
    """Return the part of a connector's URL that is announced: scheme, host and port.

    Options are left out: a datagram can be forged, and an option could weaken the connection.

    Raises:
        SettingsError: the URL is wrong, or other machines can't dial it.
    """
    endpoint = Endpoint.parse(url)
    dialed = endpoint.scheme in _SCHEMES and not endpoint.wildcard and endpoint.port
    # Hosts come into logs and into lists of URLs.
    if not dialed or not endpoint.host.isprintable() or set(endpoint.host) & _NOT_IN_HOSTS:
        raise SettingsError("connectors", url, "tcp://HOST:PORT or tls://HOST:PORT, which other machines can dial")
    return str(attrs.evolve(endpoint, options=()))


def encode_announcement(announcement: Announcement, secret: bytes | None) -> bytes:
    """Encode an announcement; with a secret the datagram is signed.

    Raises:
        UsageError: the datagram would be larger than ``limits.DATAGRAM_BYTES_MAX``, or there are more than
            ``limits.CONNECTORS_ANNOUNCED_MAX`` connectors.
    """
    if len(announcement.connectors) > limits.CONNECTORS_ANNOUNCED_MAX:
        raise UsageError(_too_many(len(announcement.connectors)))
    name = announcement.name.encode()
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        0 if secret is None else SIGNED,
        len(announcement.connectors),
        announcement.node_id,
        announcement.instance,
        announcement.began_ms,
        announcement.sequence,
        announcement.period_ms,
        len(name),
    )
    texts = [text.encode() for pair in announcement.connectors for text in (pair.primary, pair.backup)]
    size = len(head) + len(name) + sum(_SIZE.size + len(text) for text in texts) + CHECK_BYTES
    if size > limits.DATAGRAM_BYTES_MAX:
        raise UsageError(f"an announcement has at most {limits.DATAGRAM_BYTES_MAX} bytes; this one has {size}")
    content = head + name + b"".join(_SIZE.pack(len(text)) + text for text in texts)
    return content + _check(content, secret)


def decode_announcement(datagram: bytes, secret: bytes | None) -> Announcement | RefusedDatagram:
    """Decode a datagram; with a secret, the datagram must have a signature made with that secret."""
    if len(datagram) > limits.DATAGRAM_BYTES_MAX:
        return RefusedDatagram("oversized", f"{len(datagram)} bytes, more than {limits.DATAGRAM_BYTES_MAX}")
    if not datagram.startswith(MAGIC):
        return RefusedDatagram("foreign", "no announcement of meshq")
    if len(datagram) > len(MAGIC) and datagram[len(MAGIC)] > VERSION:
        text = f"version {datagram[len(MAGIC)]} of the format; version {VERSION} and older ones are read"
        return RefusedDatagram("newer_version", text)
    if len(datagram) < _HEAD.size + CHECK_BYTES:
        return RefusedDatagram("malformed", f"{len(datagram)} bytes are too few")
    content, check = datagram[:-CHECK_BYTES], datagram[-CHECK_BYTES:]
    signed = content[len(MAGIC) + 1] & SIGNED
    if secret is not None:
        if not signed:
            return RefusedDatagram("unsigned", "no signature, and this group has a secret")
        if not hmac.compare_digest(check, _check(content, secret)):
            return RefusedDatagram("forged", "not signed with the secret of this group")
    elif not signed and check != _check(content, None):
        return RefusedDatagram("malformed", "the checksum is wrong")
    try:
        return _decode_content(content)
    except (SettingsError, ValueError) as error:
        return RefusedDatagram("malformed", str(error))


def _check(content: bytes, secret: bytes | None) -> bytes:
    return sha256(content).digest() if secret is None else hmac.digest(secret, content, "sha256")


def _decode_content(content: bytes) -> Announcement:
    """Decode the bytes before the check.  Raises: ValueError, SettingsError: a rule of the format is broken."""
    _, version, flags, pairs, node_id, instance, began_ms, sequence, period_ms, name_size = _HEAD.unpack_from(content)
    if version != VERSION or flags & ~SIGNED or not pairs or not sequence or not period_ms:
        raise ValueError("a field has a value that is not allowed")
    if pairs > limits.CONNECTORS_ANNOUNCED_MAX:
        raise ValueError(_too_many(pairs))
    name, offset = _text(content, _HEAD.size, name_size)
    if not 0 < len(name) <= limits.NODE_NAME_CHARACTERS_MAX or not name.isprintable():
        raise ValueError("the name of the node is not allowed")
    connectors = []
    for _ in range(pairs):
        primary, offset = _connector(content, offset)
        backup, offset = _connector(content, offset)
        if not primary:
            raise ValueError("an entry has no connector")
        connectors.append(ConnectorPair(primary, backup))
    if offset != len(content):
        raise ValueError(f"{len(content) - offset} bytes are left over")
    return Announcement(
        node_id=node_id,
        instance=instance,
        began_ms=began_ms,
        sequence=sequence,
        period_ms=period_ms,
        name=name,
        connectors=tuple(connectors),
    )


def _too_many(connectors: int) -> str:
    return f"an announcement has at most {limits.CONNECTORS_ANNOUNCED_MAX} connectors; this one has {connectors}"


def _connector(content: bytes, offset: int) -> tuple[str, int]:
    if offset + _SIZE.size > len(content):
        raise ValueError("an entry is cut short")
    (size,) = _SIZE.unpack_from(content, offset)
    url, end = _text(content, offset + _SIZE.size, size)
    if url and announced_connector(url) != url:
        raise ValueError("a connector is not written as scheme, host and port")
    return url, end


def _text(content: bytes, offset: int, size: int) -> tuple[str, int]:
    end = offset + size
    if end > len(content):
        raise ValueError("a text is cut short")
    return content[offset:end].decode(), end
