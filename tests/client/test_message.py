"""Messages: what is allowed, what is refused, what is never shown."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshq import limits
from meshq.client.send._envelope import EnvelopeEncoder
from meshq.errors import SettingsError
from meshq.message import Message
from meshq.wire import (
    KIND_HEADERS,
    KIND_ID,
    KIND_PLAIN,
    KIND_PROPERTIES,
    decode_map,
)


def test_a_message_is_frozen_and_keeps_what_it_was_given() -> None:
    properties = {"region": "emea"}
    message = Message(b"x", properties=properties, duplicate_id="d", correlation_id="c", reply_to="r", content_type="t")
    properties["region"] = "apac"
    assert message.properties == {"region": "emea"}
    with pytest.raises(AttributeError):
        message.body = b"y"  # type: ignore[misc]
    with pytest.raises(TypeError):
        message.properties["region"] = "x"  # type: ignore[index]


def test_what_is_like_bytes_is_copied() -> None:
    body = bytearray(b"abc")
    message = Message(body)  # type: ignore[arg-type]
    body[0] = 0
    assert message.body == b"abc"
    assert Message(memoryview(b"abcd")[::2]).body == b"ac"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "keywords"),
    [
        ("body", {"body": "text"}),
        ("body", {"body": None}),
        ("body", {"body": 7}),
        ("body", {"body": bytes(limits.MESSAGE_BYTES_MAX + 1)}),
        ("properties", {"properties": [("a", 1)]}),
        ("properties", {"properties": {1: 2}}),
        ("properties", {"properties": {"": 2}}),
        ("properties", {"properties": {"\ud800": 2}}),
        ("properties", {"properties": {"x" * 256: 2}}),
        ("properties", {"properties": {"é" * 128: 2}}),
        ("properties", {"properties": {str(n): n for n in range(257)}}),
        ("properties['a']", {"properties": {"a": [1]}}),
        ("properties['a']", {"properties": {"a": {}}}),
        ("properties['a']", {"properties": {"a": bytearray(b"x")}}),
        ("properties['a']", {"properties": {"a": float("nan")}}),
        ("properties['a']", {"properties": {"a": 2**64}}),
        ("properties['a']", {"properties": {"a": -(2**63) - 1}}),
        ("properties['a']", {"properties": {"a": "\ud800"}}),
        ("properties['a']", {"properties": {"a": object()}}),
        ("duplicate_id", {"duplicate_id": ""}),
        ("duplicate_id", {"duplicate_id": b""}),
        ("duplicate_id", {"duplicate_id": b"x" * 256}),
        ("duplicate_id", {"duplicate_id": "é" * 128}),
        ("duplicate_id", {"duplicate_id": 7}),
        ("duplicate_id", {"duplicate_id": "\ud800"}),
        ("correlation_id", {"correlation_id": 7}),
        ("content_type", {"content_type": b"t"}),
        ("content_type", {"content_type": "\ud800"}),
        ("reply_to", {"reply_to": ""}),
        ("reply_to", {"reply_to": "a::"}),
        ("durable", {"durable": 1}),
        ("priority", {"priority": 10}),
        ("priority", {"priority": -1}),
        ("priority", {"priority": "4"}),
        ("priority", {"priority": True}),
        ("ttl", {"ttl": -1.0}),
        ("ttl", {"ttl": math.nan}),
        ("ttl", {"ttl": "1"}),
        ("delay", {"delay": math.nan}),
        ("delay", {"delay": -0.5}),
        ("group", {"group": ""}),
        ("group", {"group": b"g"}),
        ("group", {"group": "é" * 128}),
    ],
)
def test_what_is_not_allowed_is_named_and_its_value_not_shown(setting: str, keywords: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        Message(**{"body": b"", **keywords})
    assert caught.value.setting == setting
    assert len(str(caught.value)) < 300


def test_the_limits_themselves_are_allowed() -> None:
    full = Message(bytes(limits.MESSAGE_BYTES_MAX), duplicate_id=b"x" * 255, properties={str(n): n for n in range(256)})
    assert (len(full.body), len(full.properties or {})) == (limits.MESSAGE_BYTES_MAX, 256)
    Message(b"", properties={"x" * 255: 2**64 - 1, "y": -(2**63), "f": float("inf"), "n": None, "b": True})


def test_neither_body_nor_properties_are_shown() -> None:
    message = Message(b"canary", properties={"a": "canary"}, duplicate_id="canary")
    assert repr(message) == "<Message of 6 bytes, 1 properties, durable=True>"
    with pytest.raises(SettingsError) as caught:
        Message(b"", properties={"a": ["canary"]})  # type: ignore[dict-item]
    assert "canary" not in str(caught.value)


@pytest.fixture
def encoder() -> EnvelopeEncoder:
    return EnvelopeEncoder()


def test_an_envelope_holds_what_there_is(encoder: EnvelopeEncoder) -> None:
    assert encoder.row(None, None, None, None, None) == (KIND_PLAIN, b"", b"", b"")
    assert encoder.row({}, None, None, None, None) == (KIND_PLAIN, b"", b"", b"")
    for _ in range(2):
        kind, identity, headers, properties = encoder.row({"a": 1, "b": "x"}, "é", "c", "r", "t")
        assert kind == KIND_PLAIN | KIND_ID | KIND_HEADERS | KIND_PROPERTIES
        assert identity == "é".encode()
        assert decode_map(headers, 1000) == {"c": "c", "r": "r", "t": "t"}
        assert decode_map(properties, 1000) == {"a": 1, "b": "x"}


@pytest.mark.parametrize("value", [[1], {}, bytearray(b"x"), float("nan"), 2**64, "\ud800", object(), (1,)])
def test_a_value_that_is_not_allowed_is_found_for_a_known_name_too(encoder: EnvelopeEncoder, value: Any) -> None:
    encoder.row({"a": 1}, None, None, None, None)
    with pytest.raises(SettingsError, match=r"properties\['a'\]"):
        encoder.row({"a": value}, None, None, None, None)
    # What failed leaves nothing behind.
    assert decode_map(encoder.row({"a": 1}, None, None, None, None)[3], 1000) == {"a": 1}


@pytest.mark.parametrize("name", ["", "\ud800", "x" * 256, 7])
def test_a_name_that_is_not_allowed_is_refused_however_often(encoder: EnvelopeEncoder, name: Any) -> None:
    for _ in range(2):
        with pytest.raises(SettingsError, match="properties="):
            encoder.row({name: 1}, None, None, None, None)


def test_a_number_that_is_a_number_is_allowed_for_a_known_name(encoder: EnvelopeEncoder) -> None:
    encoder.row({"a": 1}, None, None, None, None)
    assert decode_map(encoder.row({"a": 1.5}, None, None, None, None)[3], 1000) == {"a": 1.5}


def test_properties_that_are_no_dictionary_are_copied_into_one(encoder: EnvelopeEncoder) -> None:
    from types import MappingProxyType

    row = encoder.row(MappingProxyType({"a": 1}), None, None, None, None)
    assert decode_map(row[3], 1000) == {"a": 1}


def test_properties_and_headers_together_have_a_bound(encoder: EnvelopeEncoder) -> None:
    half = "x" * (limits.PROPERTIES_BYTES_MAX // 2)
    encoder.row({"a": half}, None, None, None, None)
    with pytest.raises(SettingsError, match="bytes, encoded"):
        encoder.row({"a": half}, None, half, None, None)
