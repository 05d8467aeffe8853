"""The endpoint of DNS-SD: its contract, its names as other programs see them, and what it makes of what they say."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import zeroconf

from meshq import Zeroconf, limits
from meshq.abc import BroadcastChannel
from meshq.discovery import endpoint_at
from meshq.discovery._datagram_format import encode_announcement
from meshq.discovery._dns_sd_format import (
    MDNS_GROUP,
    MDNS_PORT,
    SERVICE,
    ServicePlace,
    decode_message,
    encode_messages,
    place_of,
)
from meshq.discovery._endpoint_urls import announced_at
from meshq.env import real_env
from meshq.errors import BrokenError, SettingsError, UsageError
from meshq.testing import ENDPOINT_CHECKS, EndpointPlace, MemoryDatagrams
from tests.discovery.kit import an_announcement, at
from tests.discovery.test_endpoints import LOOPBACK, came, in_memory

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "zeroconf.md"
MEMBER = "0123456789abcdef"
Check = Callable[[EndpointPlace], Awaitable[None]]
each_check = pytest.mark.parametrize("check", ENDPOINT_CHECKS)


# -- the contract


@each_check
async def test_a_group_of_dns_sd_conforms_in_memory(check: Check) -> None:
    await check(EndpointPlace(Zeroconf("NEGroup"), in_memory()))


@pytest.mark.real
@each_check
async def test_a_group_of_dns_sd_conforms_on_the_loopback_interface(check: Check) -> None:
    # All tests of this host share the port of multicast DNS, so each has a group of its own.
    group = real_env().entropy.token(8).hex()
    await check(EndpointPlace(Zeroconf(group, bind_address=LOOPBACK), real_env()))


async def test_groups_of_other_names_hear_nothing_of_each_other_and_capitals_count() -> None:
    world = MemoryDatagrams()
    sender, *others = [await Zeroconf(name).open(in_memory(world)) for name in ("NEGroup", "negroup", "NEGroup2", "N")]
    same = await Zeroconf("NEGroup").open(in_memory(world, "b"))
    await sender.broadcast(b"hello")
    assert await came(same, 1.0) == b"hello"
    assert [await came(other, 1.0) for other in others] == [None] * 3


async def test_a_listener_at_the_loopback_interface_hears_nothing_of_the_network() -> None:
    world = MemoryDatagrams()
    bound = await Zeroconf("NEGroup", bind_address=LOOPBACK).open(in_memory(world))
    unbound = await Zeroconf("NEGroup").open(in_memory(world))
    sender = await Zeroconf("NEGroup").open_sender(in_memory(world, "b"))
    await sender.broadcast(b"hello")
    assert (await came(bound, 1.0), await came(unbound, 1.0)) == (None, b"hello")


async def test_an_interface_that_is_not_there_is_named_when_the_channel_is_opened() -> None:
    endpoint = Zeroconf("NEGroup", bind_address="172.16.9.3")
    for opening in (endpoint.open, endpoint.open_sender):
        with pytest.raises(BrokenError, match=r"port 5353 of 172\.16\.9\.3 can't be bound"):
            await opening(in_memory())


# -- as other programs see it


def seen(*messages: bytes) -> zeroconf.ServiceInfo:
    """What the library makes of the messages of one member."""

    class Library:
        cache = zeroconf.DNSCache()

    for message in messages:
        Library.cache.async_add_records(zeroconf.DNSIncoming(message).answers())
    found = zeroconf.ServiceInfo(SERVICE, f"{MEMBER}.{SERVICE}")
    assert found.load_from_cache(Library)  # type: ignore[arg-type]
    return found


def test_a_member_is_a_service_with_the_place_of_its_first_connector() -> None:
    datagram = encode_announcement(an_announcement(connectors=at("tcp://172.16.9.3:5", "tcp://b:6")), None)
    messages = encode_messages("NEGroup", MEMBER, datagram)
    found = seen(*messages)
    assert (found.parsed_addresses(), found.port) == (["172.16.9.3"], 5)
    assert found.properties[b"group"] == b"NEGroup"
    pointers = {
        record.name: record.alias
        for record in zeroconf.DNSIncoming(messages[0]).answers()
        if isinstance(record, zeroconf.DNSPointer)
    }
    assert pointers == dict.fromkeys((SERVICE, f"_NEGroup._sub.{SERVICE}"), f"{MEMBER}.{SERVICE}")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("tcp://127.0.0.1:61616", ServicePlace(f"{MEMBER}.local.", 61616, bytes([127, 0, 0, 1]))),
        ("tls://hq.example:7", ServicePlace("hq.example.", 7, None)),
        ("tcp://[::1]:7", ServicePlace(f"{MEMBER}.local.", 7, None)),
        (f"tcp://{'x' * 64}:7", ServicePlace(f"{MEMBER}.local.", 7, None)),
        ("tcp://a..b:7", ServicePlace(f"{MEMBER}.local.", 7, None)),
    ],
)
def test_a_host_has_its_own_name_or_a_made_up_one(url: str, place: ServicePlace) -> None:
    datagram = encode_announcement(an_announcement(connectors=at(url)), None)
    assert place_of(datagram, MEMBER) == place
    assert [decode_message(message, "g") for message in encode_messages("g", MEMBER, datagram)] == [[datagram]]


def test_a_datagram_that_is_no_announcement_has_no_port() -> None:
    assert place_of(b"hello", MEMBER) == ServicePlace(f"{MEMBER}.local.", 0, None)


def test_the_bytes_of_the_document_are_a_message() -> None:
    lines = re.findall(r"^16  (.*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert decode_message(bytes.fromhex(" ".join(lines)), "NEGroup") == [b"hello"]
    assert encode_messages("NEGroup", MEMBER, b"hello") == [bytes.fromhex(" ".join(lines))]


# -- what others say


@pytest.mark.parametrize("size", [1, 250, 251, 252, 502, 1_400, limits.DATAGRAM_BYTES_MAX])
def test_a_datagram_of_any_size_is_read_as_it_was_written(size: int) -> None:
    datagram = random.Random(size).randbytes(size)
    messages = encode_messages("g" * 62, "f" * 32, datagram)
    assert [found for message in messages for found in decode_message(message, "g" * 62)] == [datagram]
    assert max(map(len, messages)) <= 8_966


def text(*strings: bytes, name: str = f"{MEMBER}.{SERVICE}") -> bytes:
    """A message with one TXT record."""
    message = zeroconf.DNSOutgoing(0x8400)
    content = b"".join(bytes([len(one)]) + one for one in strings)
    message.add_answer_at_time(zeroconf.DNSText(name, 16, 1, 120, content), 0)
    return bytes(message.packets()[0])


GOOD = (b"txtvers=1", b"group=g", b"d0=he", b"d1=llo")


@pytest.mark.parametrize(
    "message",
    [
        text(*GOOD, name=f"{MEMBER}._http._tcp.local."),
        text(b"txtvers=2", *GOOD[1:]),
        text(*GOOD[1:]),
        text(GOOD[0], b"group=h", *GOOD[2:]),
        text(*GOOD[:2]),
        text(*GOOD[:2], b"d1=llo"),
        text(*GOOD[:2], b"d0="),
        text(*GOOD[:2], *(b"d%d=" % number + bytes(240) for number in range(35))),
        b"_meshq",
        b"",
    ],
    ids=[
        "another service",
        "version",
        "no version",
        "group",
        "nothing",
        "a piece is missing",
        "empty",
        "large",
        "",
        "0",
    ],
)
def test_what_breaks_a_rule_of_the_format_is_no_datagram(message: bytes) -> None:
    assert decode_message(message, "g") == []
    assert decode_message(text(*GOOD), "g") == [b"hello"]


def test_a_question_is_no_datagram() -> None:
    message = bytearray(text(*GOOD))
    message[2] &= 0x7F
    assert decode_message(bytes(message), "g") == []


def test_names_of_the_service_are_read_in_capitals_and_of_a_key_that_comes_twice_the_first_counts() -> None:
    assert decode_message(text(*GOOD, b"d0=x", name=f"{MEMBER}._MESHQ._TCP.local."), "g") == [b"hello"]


def test_bytes_made_by_chance_are_no_datagram_and_never_an_error() -> None:
    chance = random.Random(1)
    good = text(*GOOD)
    for _ in range(2_000):
        damaged = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        cut = bytes(damaged[: chance.randrange(len(damaged) + 1)])
        assert all(0 < len(found) <= 250 for found in decode_message(cut, "g"))


async def test_a_channel_goes_on_after_junk() -> None:
    world = MemoryDatagrams()
    channel: BroadcastChannel = await Zeroconf("g").open(in_memory(world))
    raw = await world.host("stranger").bind("", 0)
    for message in (b"", b"junk _meshq", text(*GOOD), bytes(65_000) + b"_meshq"):
        await raw.send(message, MDNS_GROUP, MDNS_PORT)
    sender = await Zeroconf("g").open_sender(in_memory(world))
    await sender.broadcast(b"after")
    assert [await came(channel, 1.0) for _ in range(3)] == [b"hello", b"after", None]


# -- settings


@pytest.mark.parametrize("group", ["", "a-b", "a.b", "ä", "x" * 63, None, 5])
def test_a_group_is_named_by_letters_and_digits(group: Any) -> None:
    with pytest.raises(SettingsError, match=r"group=.*a name of 1 to 62 letters and digits"):
        Zeroconf(group)
    assert Zeroconf("x" * 62).bind_address is None
    with pytest.raises(SettingsError, match="bind_address"):
        Zeroconf("g", bind_address="localhost")


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with_library = announced_at("multicast://g").endpoints
    assert with_library == (endpoint_at("multicast", "g"), Zeroconf("g"))
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    for made in (lambda: Zeroconf("g"), lambda: endpoint_at("zeroconf", "g"), lambda: announced_at("zeroconf://g")):
        with pytest.raises(UsageError, match=re.escape("pip install 'meshq[zeroconf]'")):
            made()
    assert announced_at("multicast://g").endpoints == with_library[:1]
