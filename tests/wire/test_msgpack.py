"""Maps of names and values: what gets through, what doesn't, and what the attempt costs us."""

from __future__ import annotations

import math
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshq import limits
from meshq.errors import LocalProtocolError, RemoteProtocolError
from meshq.wire import decode_map, encode_map
from meshq.wire._msgpack import LISTS_MAX

SIZE_MAX = limits.PROPERTIES_BYTES_MAX

texts = st.text(st.characters(codec="utf-8"), max_size=40)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=300),
)
flat = st.dictionaries(texts, scalars, max_size=20)


def refused(data: bytes, **options: Any) -> str:
    """The refusal that these bytes get."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_map(data, SIZE_MAX, **options)
    return caught.value.refusal


@given(flat, st.lists(st.tuples(texts, st.lists(scalars, max_size=5)), max_size=LISTS_MAX))
def test_a_flat_map_with_a_few_lists_comes_back_as_it_was(value: dict[str, Any], more: list[tuple[str, Any]]) -> None:
    value = {**value, **dict(more)}
    data = encode_map(value)
    found = decode_map(data, SIZE_MAX)
    assert found == value
    assert list(map(type, found.values())) == list(map(type, value.values()))
    assert decode_map(memoryview(data), SIZE_MAX) == value


@given(flat)
def test_properties_come_back_without_lists_allowed(value: dict[str, Any]) -> None:
    assert decode_map(encode_map(value), SIZE_MAX, lists=False) == value


@pytest.mark.parametrize("size", [0, 1, 15, 16, 255, 256])
def test_maps_of_every_encoding_of_their_size_are_read(size: int) -> None:
    value = {f"k{index}": index for index in range(size)}
    assert decode_map(encode_map(value), SIZE_MAX) == value


def test_a_map_of_257_names_is_refused() -> None:
    assert refused(encode_map({f"k{index}": None for index in range(257)})) == "bad_header"


def test_infinities_are_numbers_and_nan_is_not() -> None:
    value = {"up": math.inf, "down": -math.inf, "small": 5e-324, "list": [math.inf]}
    assert decode_map(encode_map(value), SIZE_MAX) == value
    for nan in (struct.pack(">Bd", 0xCB, math.nan), struct.pack(">Bf", 0xCA, math.nan), b"\xcb\xff\xf0\0\0\0\0\0\1"):
        assert refused(b"\x81\xa1x" + nan) == "bad_header"
        assert refused(b"\x81\xa1x\x92\x00" + nan) == "bad_header"


def test_the_name_of_the_refusal_is_the_callers() -> None:
    assert refused(b"\x90", refusal="bad_table") == "bad_table"
    assert refused(bytes(SIZE_MAX + 1), refusal="bad_table") == "too_large"


def test_the_largest_size_is_read_and_one_byte_more_is_refused() -> None:
    data = encode_map({"k": bytes(100)})
    assert decode_map(data, len(data)) == {"k": bytes(100)}
    with pytest.raises(RemoteProtocolError) as caught:
        decode_map(data, len(data) - 1)
    assert caught.value.refusal == "too_large"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc0", id="nil"),
        pytest.param(b"\x90", id="a list"),
        pytest.param(b"\xdf\0\0\0\0", id="a map with a length of 32 bits"),
        pytest.param(b"\xde\0", id="half a length"),
        pytest.param(b"\x81", id="a pair that is missing"),
        pytest.param(b"\x81\xa1k", id="a value that is missing"),
        pytest.param(b"\x80\x80", id="something behind it"),
        pytest.param(b"\x81\xa1k\x01\x02", id="a value too many"),
        pytest.param(b"\x82\xa1k\x01\xa1k\x02", id="a key twice"),
        pytest.param(b"\x82\xa1k\x01\xd9\x01k\x02", id="a key twice, encoded in two ways"),
        pytest.param(b"\x81\x01\x02", id="a number as key"),
        pytest.param(b"\x81\xc4\x01k\x02", id="bytes as key"),
        pytest.param(b"\x81\xc0\x02", id="nil as key"),
        pytest.param(b"\x81\x90\x02", id="a list as key"),
        pytest.param(b"\x81\xa1k\x80", id="a map in the map"),
        pytest.param(b"\x81\xa1k\xde\0\0", id="a map in the map, 16 bits"),
        pytest.param(b"\x81\xa1k\xdf\0\0\0\0", id="a map in the map, 32 bits"),
        pytest.param(b"\x81\xa1k\x91\x90", id="a list in a list"),
        pytest.param(b"\x81\xa1k\x91\x80", id="a map in a list"),
        pytest.param(b"\x81\xa1k\xdd\0\0\0\0", id="a list with a length of 32 bits"),
        pytest.param(b"\x83\xa1a\x90\xa1b\x90\xa1c\x90", id="three lists"),
        pytest.param(b"\x81\xa1k\xd4\x01\0", id="an extension"),
        pytest.param(b"\x81\xa1k\xc7\0\x01", id="an empty extension"),
        pytest.param(b"\x81\xa1k\xd6\xff\0\0\0\0", id="a timestamp"),
        pytest.param(b"\x81\xa1k\xc1", id="a byte that means nothing"),
        pytest.param(b"\x81\xa1k\xa1\xff", id="text that is no UTF-8"),
        pytest.param(b"\x81\xa1\xff\x01", id="a key that is no UTF-8"),
        pytest.param(b"\x81\xa1k\xa3\xed\xa0\x80", id="half a surrogate pair"),
        pytest.param(b"\x81\xa1k\xa2\xc0\x80", id="an overlong zero"),
        pytest.param(b"\x81\xa1k\xc4\xff\0", id="bytes that end early"),
        pytest.param(b"\x81\xa1k\xc6\xff\xff\xff\xff", id="4 GiB of bytes"),
        pytest.param(b"\x81\xa1k\xdb\xff\xff\xff\xff\x90", id="4 GiB of text"),
        pytest.param(b"\x81\xa1k\xdc\xff\xff\x90", id="65,535 items that are not there"),
        pytest.param(b"\x81\xa1k\xc5\x80", id="half the length of bytes"),
        pytest.param(b"\x81\xa1k" + b"\x91" * 1_000 + b"\xc0", id="a thousand levels"),
        pytest.param(b"\x81\xa1k" + b"\x91" * 60_000, id="sixty thousand levels"),
        pytest.param(b"\x81" * 60_000, id="maps all the way down"),
    ],
)
def test_what_is_no_flat_map_is_refused(data: bytes) -> None:
    assert refused(data) == "bad_header"


@pytest.mark.parametrize("value", [[], [1], ["x"] * 20])
def test_a_list_is_refused_where_there_are_none(value: list[Any]) -> None:
    data = encode_map({"k": value})
    assert decode_map(data, SIZE_MAX) == {"k": value}
    assert refused(data, lists=False) == "bad_header"


def test_whole_numbers_of_64_bits_are_read_whole() -> None:
    value = {"low": -(2**63), "high": 2**64 - 1, "list": [2**63, -1]}
    assert decode_map(encode_map(value), SIZE_MAX) == value


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, "\ud800", object(), (1,), {1}, b"x".join, [[[]] * 3, object()]],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_encoding_is_an_error_of_ours(value: object) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode_map({"k": value})
    assert caught.value.outcome == "not_done"


def test_no_error_repeats_what_is_in_the_map() -> None:
    secret = "correct horse"
    key = encode_map({secret: 1})[1:-1]
    for data in (
        b"\x81" + key + b"\x80",
        b"\x82" + key + b"\x01" + key + b"\x01",
        b"\x81" + key + b"\xd4\x01\0",
        b"\x81" + b"\xc4" + bytes([len(secret)]) + secret.encode() + b"\x01",
        b"\x81" + key + b"\xa1\xff",
        encode_map({secret: 1}) + secret.encode(),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_map(data, SIZE_MAX)
        assert secret not in str(caught.value)
        assert caught.value.__cause__ is None
    with pytest.raises(LocalProtocolError) as local:
        encode_map({"k": secret + "\ud800"})
    assert secret not in str(local.value)
    assert local.value.__suppress_context__


def cost(data: bytes) -> int:
    """The most memory that decoding takes at any moment, whatever comes of it."""
    tracemalloc.start()
    try:
        decode_map(data, len(data))
    except RemoteProtocolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x81\xa1k" + b"\xdc\xff\xff" * 1_000, id="lists that claim much"),
        pytest.param(b"\x81\xa1k" + b"\xdc\x10\x00" * 1_000, id="lists that claim what is allowed"),
        pytest.param(b"\x81\xa1k\xdc\x10\x00" + b"\x90" * 4_096, id="many lists"),
        pytest.param(b"\x81\xa1k\xdc\x10\x00" + b"\x80" * 4_096, id="many maps"),
        pytest.param(b"\x81\xa1k\xdc\x10\x00" + b"\xa2xy" * 4_096, id="many strings"),
        pytest.param(b"\x81\xa1k\xdc\x10\x00" + b"\xcb\x7f\xe0\0\0\0\0\0\0" * 4_096, id="many numbers"),
        pytest.param(b"\x81\xa1k\xdc\x10\x00" + b"\xcd\x10\x00" * 4_096, id="many small numbers"),
        pytest.param(
            b"\xde\x01\x00" + b"".join(b"\xa2%c%c\xc0" % (i, j) for i in b"ab" for j in range(128)), id="keys"
        ),
        pytest.param(b"\x81\xa1k\xdb\x7f\xff\xff\xff", id="a string that is not there"),
        pytest.param(b"\xde\xff\xff" + b"\xa1k\x01" * 20_000, id="keys twice"),
    ],
)
def test_no_bytes_cost_more_than_a_small_multiple_of_themselves(data: bytes) -> None:
    assert cost(data) < 40 * len(data) + 64 * limits.KIB


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x81\xa1k", b"\x81\xa1k\x93", b"\x82\xa1k\x01", b"\xde\0\2"]))
@example(b"\xdd\xff\xff\xff\xff", b"\x81\xa1k")
def test_any_bytes_at_all_are_a_map_or_a_violation(data: bytes, start: bytes) -> None:
    try:
        value = decode_map(start + data, SIZE_MAX)
    except RemoteProtocolError:
        return
    # What is read at all is what the encoding says.
    assert value == msgpack.unpackb(start + data, raw=False)


@given(flat, st.integers(0, 2**32), st.integers(0, 255))
def test_a_map_with_one_byte_changed_is_a_map_or_a_violation(value: dict[str, Any], at: int, byte: int) -> None:
    data = bytearray(encode_map(value))
    data[at % len(data)] = byte
    try:
        found = decode_map(bytes(data), SIZE_MAX)
    except RemoteProtocolError:
        return
    assert all(type(key) is str for key in found)


#: A token of each kind, filled with bytes that would begin a map if somebody lost his place.
TOKENS = {
    "nil": b"\xc0", "false": b"\xc2", "true": b"\xc3", "small": b"\x7f", "negative": b"\xe0", "minus one": b"\xff",
    "float 32": b"\xca" + b"\x80" * 4, "float 64": b"\xcb" + b"\x80" * 8,
    "uint 8": b"\xcc\x80", "uint 16": b"\xcd\x80\x80",
    "uint 32": b"\xce" + b"\x80" * 4, "uint 64": b"\xcf" + b"\x80" * 8,
    "int 8": b"\xd0\x80", "int 16": b"\xd1\x80\x80", "int 32": b"\xd2" + b"\x80" * 4, "int 64": b"\xd3" + b"\x80" * 8,
    "text": b"\xa2\xc2\x80", "longest short text": b"\xbf" + b"\xc2\x80" * 15 + b"a", "no text": b"\xa0",
    "text 8": b"\xd9\x04\xc2\x80\xc2\x80", "text 16": b"\xda\x00\x02\xc2\x80", "text 32": b"\xdb\0\0\0\x02\xc2\x80",
    "bytes 8": b"\xc4\x02\x80\x80", "bytes 16": b"\xc5\x00\x02\x80\x80", "bytes 32": b"\xc6\0\0\0\x02\x80\x80",
    "list": b"\x92\xcc\x80\x01", "list 16": b"\xdc\x00\x02\x01\xcc\x80",
}  # fmt: skip


@pytest.mark.parametrize("token", list(TOKENS.values()), ids=list(TOKENS))
def test_nobody_loses_his_place_at_any_token(token: bytes) -> None:
    # One byte too far is in the middle of a name, at a byte that would begin a map, too.
    names = [b"\xa2\xc2" + bytes([0x80 + index]) for index in range(16)]
    for count in (2, 16):
        head = bytes([0x80 | count]) if count < 16 else b"\xde\0\x10"
        values = [token, token, *[b"\xcc\x90"] * 14]
        data = head + b"".join(name + value for name, value in zip(names[:count], values, strict=False))
        assert decode_map(data, SIZE_MAX) == msgpack.unpackb(data)
