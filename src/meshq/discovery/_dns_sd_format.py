"""A datagram as a service of DNS-SD: multicast DNS messages, made and read with the library zeroconf.

A member of a group is an instance of ``_meshq._tcp`` with the subtype of the group.  Its TXT record has the group, as
it is written, and the datagram in pieces (docs/formats/zeroconf.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from types import ModuleType
from typing import Any, Final

import attrs

from meshq import limits
from meshq.discovery._datagram_format import Announcement, decode_announcement
from meshq.endpoint import Endpoint
from meshq.errors import UsageError

#: The type of the service.
SERVICE: Final = "_meshq._tcp.local."
#: Where multicast DNS is spoken.
MDNS_GROUP: Final = "224.0.0.251"
MDNS_PORT: Final = 5353
#: The characters of one label of a name, less the underscore of a subtype.
GROUP_CHARACTERS_MAX: Final = 62
#: Seconds for which others may remember a record: as long as the address of a host in this protocol.
RECORD_TTL_S: Final = 120
LABEL_BYTES_MAX: Final = 63
_STRING_BYTES_MAX: Final = 255
#: Numbers of DNS: types of records; the class of all of them, and of those that only one host has; an answer with
#: authority.
_A, _PTR, _TXT, _SRV = 1, 12, 16, 33
_INTERNET: Final = 1
_UNIQUE: Final = _INTERNET | 0x8000
_RESPONSE: Final = 0x8400
_VERSION: Final = b"1"
_NEEDED: Final = "discovery by zeroconf needs the package zeroconf: pip install 'meshq[zeroconf]'"
#: The library notes a time with each record, which nothing here depends on; unless given it asks the clock.
_NO_TIME_MS: Final = 1.0


def check_installed() -> None:
    """Check that the library is installed.  Raises: UsageError: it isn't; says how to install it."""
    _library()


def is_installed() -> bool:
    """Whether the library is installed."""
    try:
        check_installed()
    except UsageError:
        return False
    return True


@attrs.frozen
class ServicePlace:
    """The place of an instance, as other programs that look for services see it.

    ``server``: the name of the host; ``address``: the IPv4 address of that name, if the name is made up.
    """

    server: str
    port: int
    address: bytes | None


def place_of(datagram: bytes, member: str) -> ServicePlace:
    """Return the place of the first connector of an announcement; port 0 for any other datagram."""
    made_up = f"{member}.local."
    found = decode_announcement(datagram, None)
    if not isinstance(found, Announcement):
        return ServicePlace(made_up, 0, None)
    endpoint = Endpoint.parse(found.connectors[0].primary)
    try:
        return ServicePlace(made_up, endpoint.port, IPv4Address(endpoint.host).packed)
    except ValueError:
        named = all(0 < len(label.encode()) <= LABEL_BYTES_MAX for label in endpoint.host.split("."))
        return ServicePlace(f"{endpoint.host}." if named and ":" not in endpoint.host else made_up, endpoint.port, None)


def encode_messages(group: str, member: str, datagram: bytes) -> list[bytes]:
    """Encode a datagram as messages, of which one has the datagram whole; ``member``: the name of the instance."""
    library = _library()
    instance = f"{member}.{SERVICE}"
    place = place_of(datagram, member)
    message = library.DNSOutgoing(_RESPONSE, multicast=True)
    # A record that is larger than others is alone in a message, if it is the first one.
    records: list[Any] = [
        library.DNSText(instance, _TXT, _UNIQUE, RECORD_TTL_S, _text(group, datagram), _NO_TIME_MS),
        library.DNSPointer(SERVICE, _PTR, _INTERNET, RECORD_TTL_S, instance, _NO_TIME_MS),
        library.DNSPointer(f"_{group}._sub.{SERVICE}", _PTR, _INTERNET, RECORD_TTL_S, instance, _NO_TIME_MS),
        library.DNSService(instance, _SRV, _UNIQUE, RECORD_TTL_S, 0, 0, place.port, place.server, _NO_TIME_MS),
    ]
    if place.address is not None:
        records.append(library.DNSAddress(place.server, _A, _UNIQUE, RECORD_TTL_S, place.address, created=_NO_TIME_MS))
    for record in records:
        message.add_answer_at_time(record, 0)
    return list(message.packets())


def decode_message(message: bytes, group: str) -> list[bytes]:
    """Return the datagrams of a group in a message; any other message has none."""
    # Most of it is about other services, and costs nothing more than this.
    if b"_meshq" not in message.lower():
        return []
    library = _library()
    read = library.DNSIncoming(message, now=_NO_TIME_MS)
    if not read.valid or not read.is_response():
        return []
    found = []
    for record in read.answers():
        if isinstance(record, library.DNSText) and record.name.lower().endswith(f".{SERVICE}"):
            datagram = _datagram(record.text, group)
            if datagram is not None:
                found.append(datagram)
    return found


def _text(group: str, datagram: bytes) -> bytes:
    strings = [b"txtvers=" + _VERSION, b"group=" + group.encode()]
    at = 0
    for number in range(len(datagram)):
        key = b"d%d=" % number
        piece = datagram[at : at + _STRING_BYTES_MAX - len(key)]
        if not piece:
            break
        strings.append(key + piece)
        at += len(piece)
    return b"".join(bytes([len(one)]) + one for one in strings)


def _datagram(text: bytes, group: str) -> bytes | None:
    keys = _keys(text)
    if keys.get(b"txtvers") != _VERSION or keys.get(b"group") != group.encode():
        return None
    pieces: list[bytes] = []
    while (piece := keys.get(b"d%d" % len(pieces))) is not None:
        pieces.append(piece)
    datagram = b"".join(pieces)
    return datagram if 0 < len(datagram) <= limits.DATAGRAM_BYTES_MAX else None


def _keys(text: bytes) -> Mapping[bytes, bytes]:
    """Return the values of a TXT record by their keys; of a key that comes twice the first one counts."""
    keys: dict[bytes, bytes] = {}
    at = 0
    while at < len(text):
        end = at + 1 + text[at]
        key, _, value = text[at + 1 : end].partition(b"=")
        keys.setdefault(key, value)
        at = end
    return keys


def _library() -> ModuleType:
    try:
        import zeroconf
    except ModuleNotFoundError as error:
        if error.name != "zeroconf":
            raise
        raise UsageError(_NEEDED) from error
    return zeroconf
