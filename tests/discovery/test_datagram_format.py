"""The bytes of an announcement: the example of the document, what is refused and why, and bytes made by chance."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshq import limits
from meshq.discovery import Announcement, ConnectorPair
from meshq.discovery._datagram_format import (
    CHECK_BYTES,
    RefusedDatagram,
    announced_connector,
    decode_announcement,
    encode_announcement,
)
from meshq.errors import SettingsError, UsageError
from tests.discovery.kit import SECRET, an_announcement, at

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "discovery.md"
FIRST = an_announcement(connectors=(ConnectorPair("tcp://127.0.0.1:61616", "tls://example.org:61617"),))


def refused(datagram: bytes, secret: bytes | None = None) -> str:
    found = decode_announcement(datagram, secret)
    assert isinstance(found, RefusedDatagram), found
    return found.reason


def resigned(datagram: bytes, change: int, value: int) -> bytes:
    """Change one byte of a signed datagram, and sign it anew, as a member with the secret and a bug would."""
    from meshq.discovery._datagram_format import _check

    content = bytearray(datagram[:-CHECK_BYTES])
    content[change] = value
    return bytes(content) + _check(bytes(content), SECRET)


def test_the_example_of_the_document_is_a_signed_announcement() -> None:
    lines = re.findall(r"^16  (.*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    datagram = bytes.fromhex(" ".join(lines))
    assert datagram == encode_announcement(FIRST, SECRET)
    assert decode_announcement(datagram, SECRET) == FIRST


@pytest.mark.parametrize("written", [None, SECRET])
def test_a_group_without_a_secret_takes_signed_and_unsigned_announcements(written: bytes | None) -> None:
    assert decode_announcement(encode_announcement(FIRST, written), None) == FIRST


def test_a_group_with_a_secret_refuses_what_was_made_without_it() -> None:
    assert refused(encode_announcement(FIRST, None), SECRET) == "unsigned"
    assert refused(encode_announcement(FIRST, b"another secret"), SECRET) == "forged"


def test_each_changed_bit_of_a_signed_announcement_is_noticed() -> None:
    datagram = encode_announcement(FIRST, SECRET)
    for place in range(len(datagram)):
        for bit in range(8):
            changed = bytearray(datagram)
            changed[place] ^= 1 << bit
            assert refused(bytes(changed), SECRET) in ("foreign", "newer_version", "unsigned", "forged"), (place, bit)


def test_each_changed_bit_of_an_unsigned_announcement_is_noticed() -> None:
    datagram = encode_announcement(FIRST, None)
    flags = 5
    for place in range(len(datagram)):
        for bit in range(8):
            changed = bytearray(datagram)
            changed[place] ^= 1 << bit
            if (place, bit) == (flags, 0):
                # It says that it is signed, which a group without a secret can't check.
                continue
            assert refused(bytes(changed)) in ("foreign", "newer_version", "malformed"), (place, bit)


def test_an_announcement_that_is_cut_short_anywhere_is_refused() -> None:
    for secret in (None, SECRET):
        datagram = encode_announcement(FIRST, secret)
        for size in range(len(datagram)):
            refused(datagram[:size], secret)


def test_a_later_version_is_refused_with_both_versions_named_whatever_follows() -> None:
    found = decode_announcement(b"MQDA\x02", SECRET)
    assert isinstance(found, RefusedDatagram)
    assert (found.reason, found.text) == (
        "newer_version",
        "version 2 of the format; version 1 and older ones are read",
    )


def test_what_other_programs_send_to_the_port_is_foreign() -> None:
    assert refused(b"") == refused(b"M-SEARCH * HTTP/1.1") == refused(b"MQD") == "foreign"


def test_the_largest_announcement_is_taken_and_a_larger_one_neither_made_nor_read() -> None:
    small = len(encode_announcement(an_announcement(connectors=()), None))
    url = "tcp://" + "h" * (limits.DATAGRAM_BYTES_MAX - small - 4 - len("tcp://:61616")) + ":61616"
    largest = an_announcement(connectors=at(url))
    datagram = encode_announcement(largest, None)
    assert len(datagram) == limits.DATAGRAM_BYTES_MAX
    assert decode_announcement(datagram, None) == largest
    with pytest.raises(UsageError, match=r"at most 8192 bytes; this one has 8193"):
        encode_announcement(an_announcement(connectors=at(url.replace("h:", "hh:"))), None)
    assert refused(datagram + b"x") == "oversized"


def test_an_announcement_has_a_bounded_number_of_connectors_each_of_which_is_dialed() -> None:
    urls = [f"tcp://a:{port}" for port in range(1, limits.CONNECTORS_ANNOUNCED_MAX + 2)]
    most = an_announcement(connectors=at(*urls[:-1]))
    datagram = encode_announcement(most, SECRET)
    assert decode_announcement(datagram, SECRET) == most
    text = "an announcement has at most 8 connectors; this one has 9"
    with pytest.raises(UsageError, match=f"^{text}$"):
        encode_announcement(an_announcement(connectors=at(*urls)), SECRET)
    entries = 6
    found = decode_announcement(resigned(datagram, entries, len(urls)), SECRET)
    assert found == RefusedDatagram("malformed", text)


@pytest.mark.parametrize(
    "wrong",
    [
        an_announcement(connectors=()),
        an_announcement(sequence=0),
        an_announcement(period_ms=0),
        an_announcement(name=""),
        an_announcement(name="two\nlines"),
        an_announcement(name="a" * 257),
        an_announcement(connectors=(ConnectorPair("", "tcp://127.0.0.1:1"),)),
        an_announcement(connectors=at("tcp://127.0.0.1:61616?insecure=true")),
        an_announcement(connectors=at("TCP://127.0.0.1:61616")),
        an_announcement(connectors=at("inproc://a")),
        an_announcement(connectors=at("udp://127.0.0.1:61616")),
        an_announcement(connectors=at("tcp://0.0.0.0:61616")),
        an_announcement(connectors=at("tcp://[::]:61616")),
        an_announcement(connectors=at("tcp://127.0.0.1:0")),
        an_announcement(connectors=at("nonsense")),
        an_announcement(connectors=at("tcp://a,b:1")),
        an_announcement(connectors=at("tcp://(a:1")),
        an_announcement(connectors=at("tcp://a b:1")),
        an_announcement(connectors=at("tcp://a\x1bc:1")),
        an_announcement(connectors=at("tcp://a\u2028b:1")),
    ],
)
def test_a_member_that_breaks_a_rule_of_the_format_is_refused(wrong: Announcement) -> None:
    assert refused(encode_announcement(wrong, SECRET), SECRET) == "malformed"


@pytest.mark.parametrize(("place", "value"), [(4, 0), (5, 3), (6, 2), (60, 200), (63, 255)])
def test_a_field_with_a_wrong_value_is_refused_although_it_is_signed(place: int, value: int) -> None:
    assert refused(resigned(encode_announcement(FIRST, SECRET), place, value), SECRET) == "malformed"


def test_of_a_connector_only_scheme_host_and_port_are_announced() -> None:
    assert announced_connector("tcp://localhost:61616?insecure=true&call_timeout=3") == "tcp://localhost:61616"
    assert announced_connector("tls://[::1]:61616") == "tls://[::1]:61616"
    with pytest.raises(SettingsError, match="which other machines can dial"):
        announced_connector("inproc://shop")


urls = st.builds(
    "{}://{}:{}".format,
    st.sampled_from(["tcp", "tls"]),
    st.from_regex(r"\A[a-z][a-z0-9.-]{0,30}\Z"),
    st.integers(1, 65_535),
)
announcements = st.builds(
    Announcement,
    node_id=st.binary(min_size=16, max_size=16),
    instance=st.binary(min_size=16, max_size=16),
    began_ms=st.integers(0, 2**64 - 1),
    sequence=st.integers(1, 2**64 - 1),
    period_ms=st.integers(1, 2**32 - 1),
    name=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40),
    connectors=st.lists(st.builds(ConnectorPair, urls, st.just("") | urls), min_size=1, max_size=5).map(tuple),
)


@pytest.mark.slow
@given(announcement=announcements, secret=st.none() | st.binary(min_size=1, max_size=40))
def test_every_announcement_is_read_as_it_was_written(announcement: Announcement, secret: bytes | None) -> None:
    assert decode_announcement(encode_announcement(announcement, secret), secret) == announcement


@pytest.mark.slow
@given(data=st.data(), announcement=announcements)
def test_bytes_made_by_chance_are_an_announcement_or_refused_and_never_an_error(
    data: st.DataObject, announcement: Announcement
) -> None:
    datagram = bytearray(encode_announcement(announcement, SECRET))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(datagram)))
        end = data.draw(st.integers(start, min(len(datagram), start + 8)))
        datagram[start:end] = data.draw(st.binary(max_size=12))
    for secret in (None, SECRET):
        found = decode_announcement(bytes(datagram), secret)
        assert isinstance(found, RefusedDatagram) or attrs.asdict(found)
        # What was changed has no signature any more, so only the unchanged bytes count for a group with a secret.
        assert secret is None or isinstance(found, RefusedDatagram) or found == announcement
