"""Typed headers: they come back as they were, and everything that is not in the schema is refused."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq import Broker, limits
from meshq.errors import InvariantError, LocalProtocolError, RemoteProtocolError, SettingsError
from meshq.wire import (
    COUNTER_MAX,
    SCHEMAS,
    Answer,
    Attach,
    Attached,
    Authenticate,
    Call,
    Close,
    Consume,
    ConsumerLost,
    Deliver,
    Forward,
    Frame,
    FrameType,
    Header,
    Hello,
    Leave,
    LinkOpening,
    Produce,
    Refuse,
    Welcome,
    decode_map,
    encode_map,
    header_of,
)
from tests.wire._frames_strategy import header_of_type, headers

PRODUCER = bytes(range(16))
NAME = "x" * limits.ADDRESS_BYTES_MAX


def refused(schema: type[Header], **values: Any) -> str:
    """The refusal, and what it says, of a header with these keys."""
    with pytest.raises(RemoteProtocolError) as caught:
        schema.decode(encode_map(values))
    assert caught.value.refusal == "bad_header"
    return str(caught.value)


@pytest.mark.slow
@given(headers)
def test_every_header_comes_back_as_it_was(header: Header) -> None:
    data = header.encode()
    assert len(data) <= limits.HEADER_BYTES_MAX
    assert type(header).decode(data) == header
    assert header_of(Frame(header.frame_type, header=data), type(header)) == header


def test_every_frame_type_with_a_header_has_a_schema() -> None:
    assert {frame_type.name for frame_type in set(FrameType) - set(SCHEMAS)} == {
        "PING",
        "PONG",
        "RECEIVED",
        "SNAPSHOT",
        "BLOCK",
        "PIECE",
        "SETTLE",
        "CONFIRM",
        "CREDIT",
    }
    assert all(schema.frame_type is frame_type for frame_type, schema in SCHEMAS.items())


def test_what_has_its_default_is_left_out() -> None:
    assert Answer().encode() == b"\x80"
    assert Leave().encode() == b"\x80"
    assert Leave(handed=0).encode() == b"\x80"
    assert Leave(handed=3).encode() == encode_map({"handed": 3})


def test_an_empty_header_is_one_with_all_defaults() -> None:
    assert Answer.decode(b"") == Answer()
    with pytest.raises(RemoteProtocolError, match="lacks its key 'oldest'"):
        Hello.decode(b"")


def required(schema: type[Header]) -> dict[str, Any]:
    """The least that a header of this schema says."""
    values: dict[type, Any] = {int: 1, str: "x"}
    needed = [field for field in attrs.fields(schema) if field.default is attrs.NOTHING]
    return {field.name: values.get(field.metadata["types"][0], bytes(field.metadata["size"] or 0)) for field in needed}


@pytest.mark.parametrize("schema", list(SCHEMAS.values()), ids=lambda schema: schema.__name__)
def test_each_required_key_is_missed(schema: type[Header]) -> None:
    schema.decode(encode_map(required(schema)))
    for name in required(schema):
        values = {key: value for key, value in required(schema).items() if key != name}
        assert f"lacks its key {name!r}" in refused(schema, **values)


@pytest.mark.parametrize("schema", list(SCHEMAS.values()), ids=lambda schema: schema.__name__)
def test_each_key_of_another_type_is_refused(schema: type[Header]) -> None:
    for field in attrs.fields(schema):
        for value in (1, "x", b"x", True, 1.5, None, ["x"]):
            if type(value) not in field.metadata["types"]:
                key = field.metadata.get("key") or field.name
                said = refused(schema, **{**required(schema), key: value})
                assert f"{type(value).__name__} under {field.name!r}" in said


def test_a_key_that_is_not_known_is_refused_unless_it_may_be_ignored() -> None:
    assert refused(Leave, handed=1, later=2) != ""
    assert refused(Leave, handed=1, **{"": 2}) != ""
    assert Leave.decode(encode_map({"handed": 1, "~later": "whatever"})) == Leave(handed=1)


@pytest.mark.parametrize(("name", "value"), [("waited", 7), ("topic", True)])
def test_what_a_run_has_said_later_is_ignored_by_a_node_that_does_not_know_it(name: str, value: object) -> None:
    """It came later than the frame: the links to older nodes must go on."""
    header = Forward(producer=bytes(16), number=1, address="a", queues=(1,), arrival=5)
    said = decode_map(attrs.evolve(header, **{name: value}).encode(), limits.HEADER_BYTES_MAX)  # type: ignore[arg-type]
    assert {key for key in said if key not in decode_map(header.encode(), limits.HEADER_BYTES_MAX)} == {f"~{name}"}


def test_an_error_does_not_repeat_a_name_or_a_value_from_the_wire() -> None:
    for said in (refused(Leave, secret=1), refused(Leave, handed="secret"), refused(Hello, oldest=1, label=["secret"])):
        assert "secret" not in said


@pytest.mark.parametrize("value", [-1, COUNTER_MAX + 1, 2**64 - 1])
def test_a_number_under_or_over_its_range_is_refused_on_both_sides(value: int) -> None:
    refused(Leave, handed=value)
    with pytest.raises(LocalProtocolError):
        Leave(handed=value).encode()
    assert Leave.decode(Leave(handed=COUNTER_MAX).encode()).handed == COUNTER_MAX


@pytest.mark.parametrize("size", [0, 15, 17])
def test_an_identity_of_another_size_is_refused_on_both_sides(size: int) -> None:
    refused(Produce, producer=bytes(size), address="a")
    with pytest.raises(LocalProtocolError, match="producer"):
        Produce(producer=bytes(size), address="a").encode()


def test_both_names_of_a_target_may_have_their_largest_size() -> None:
    target = f"{NAME}::{NAME}"
    assert Produce.decode(Produce(producer=PRODUCER, address=target).encode()).address == target
    consume = Consume(queue=target, window=1, window_bytes=1)
    assert Consume.decode(consume.encode()) == consume
    refused(Produce, producer=PRODUCER, address=target + "x")
    with pytest.raises(LocalProtocolError, match="address"):
        Produce(producer=PRODUCER, address=target + "x").encode()


@pytest.mark.parametrize(
    ("schema", "values", "name", "size"),
    [
        (Hello, {"oldest": 1, "newest": 1}, "role", 16),
        (Hello, {"oldest": 1, "newest": 1}, "label", 256),
        (Welcome, {"version": 1, "node_id": PRODUCER}, "node_name", 256),
        (Authenticate, {}, "mechanism", 32),
        (Call, {}, "operation", 64),
        (Close, {}, "text", 1024),
    ],
)
def test_text_of_the_largest_size_is_read_and_one_character_more_is_refused(
    schema: type[Header], values: dict[str, Any], name: str, size: int
) -> None:
    assert getattr(schema.decode(encode_map({**values, name: "x" * size})), name) == "x" * size
    refused(schema, **values, **{name: "x" * (size + 1)})


def test_the_header_with_most_in_it_fits_4096_bytes() -> None:
    counts = tuple(item for index in range(256) for item in (index, 2**31))
    header = Deliver(
        address=f"{NAME}::{NAME}",
        producer=PRODUCER,
        number=COUNTER_MAX,
        sequence=COUNTER_MAX,
        step=COUNTER_MAX,
        base=2**31,
        counts=counts,
    )
    assert Deliver.decode(header.encode()) == header


def test_a_header_of_4096_bytes_is_built_and_one_byte_more_is_not() -> None:
    spare = limits.HEADER_BYTES_MAX - len(Call(operation="o", arguments=("a", b"x" * 256)).encode()) + 256
    full = Call(operation="o", arguments=("a", bytes(spare)))
    assert len(full.encode()) == limits.HEADER_BYTES_MAX
    assert Call.decode(full.encode()) == full
    with pytest.raises(LocalProtocolError, match="4097 bytes; allowed: 4096"):
        Call(operation="o", arguments=("a", bytes(spare + 1))).encode()
    with pytest.raises(RemoteProtocolError) as caught:
        Call.decode(encode_map({"operation": "o", "arguments": ["a", bytes(spare + 1)]}))
    assert caught.value.refusal == "too_large"


def test_an_explanation_is_cut_to_what_fits_and_never_fails() -> None:
    for text in ("x" * 5_000, "é" * 5_000, "\U0001f600" * 5_000, "\ud800" * 5_000, "no", ""):
        for header in (Close(code=5, text=text), Answer(code=5, text=text), Refuse(messages=1, code=5, text=text)):
            assert len(header.encode()) < 2_000
            assert type(header).decode(header.encode()) == header
    assert Close(text="x" * 5_000).text == "x" * 1_024
    assert Close(text="\U0001f600" * 5_000).text == "\U0001f600" * 256
    assert Close(text="ab" + "\U0001f600" * 256).text == "ab" + "\U0001f600" * 255


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "a::b", "a\x00", "\u202egnp", "é" * 257, "\U0001f600" * 129])
def test_a_node_has_the_name_that_a_broker_may_have(name: str) -> None:
    values = {"version": 1, "node_id": PRODUCER}
    assert "node_name" in refused(Welcome, **values, node_name=name)
    opening = {"link": PRODUCER, "node_id": PRODUCER, "instance": PRODUCER}
    assert "node_name" in refused(LinkOpening, **opening, node_name=name)
    with pytest.raises(LocalProtocolError, match="node_name"):
        Welcome(**values, node_name=name).encode()
    with pytest.raises(SettingsError):
        Broker(name, data_dir=None)
    # As long as a broker's may be.
    for longest in ("é" * 256, "\U0001f600" * 128, "hq 1"):
        assert Welcome.decode(encode_map({**values, "node_name": longest})).node_name == longest
        Broker(longest, data_dir=None)


def test_an_explanation_of_the_other_side_is_one_line_without_control_characters() -> None:
    text = "all well\n2026 CRITICAL: gone\r\x1b[31m\x00\u2028\u202eé \\n"
    plain = "all well\\n2026 CRITICAL: gone\\r\\x1b[31m\\x00\\u2028\\u202eé \\n"
    for schema, values in (
        (Close, {}),
        (Answer, {}),
        (Refuse, {"messages": 1, "code": 5}),
        (ConsumerLost, {"code": 5}),
    ):
        assert schema.decode(encode_map({**values, "text": text})).text == plain
        # Whoever is older and sees it sees that as well, and reading it again changes nothing.
        assert schema(**values, text=text).encode() == schema(**values, text=plain).encode()
    assert Close.decode(encode_map({"text": "\n" * 1_024})).text == "\\n" * 512


def test_items_of_another_type_are_refused_on_both_sides() -> None:
    refused(Hello, oldest=1, newest=1, features=["x", 1])
    refused(Deliver, address="a", producer=PRODUCER, number=1, sequence=1, counts=[1, "x"])
    refused(Deliver, address="a", producer=PRODUCER, number=1, sequence=1, counts=[1, True])
    with pytest.raises(LocalProtocolError, match="features"):
        Hello(oldest=1, newest=1, features=("x", 1)).encode()  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="arguments"):
        Call(operation="o", arguments=("a", math.nan)).encode()


def test_what_cannot_be_encoded_is_an_error_of_ours() -> None:
    with pytest.raises(LocalProtocolError):
        Call(operation="o", arguments=("a", 2**70)).encode()


@pytest.mark.parametrize("counts", [(0,), (0, 2, 1), (0, 2, 0, 3), (5, 2), (4, 1, 5, 1)])
def test_delivery_counts_that_fit_no_run_of_five_are_refused(counts: tuple[int, ...]) -> None:
    header = Deliver(address="a", producer=PRODUCER, number=1, sequence=1, counts=counts)
    with pytest.raises(RemoteProtocolError) as caught:
        header.delivery_counts(5)
    assert caught.value.refusal == "bad_header"


def test_delivery_counts_are_read_by_index() -> None:
    values = {"address": "a", "producer": PRODUCER, "number": 1, "sequence": 1}
    assert Deliver(**values).delivery_counts(5) == {}
    assert Deliver(**values, counts=(4, 2, 0, 9)).delivery_counts(5) == {4: 2, 0: 9}
    refused(Deliver, **values, counts=[-1, 2])


@pytest.mark.slow
@given(header_of_type(Deliver), st.booleans(), st.booleans())
def test_the_quick_way_of_a_delivery_says_the_same_as_the_common_one(header: Deliver, counts: bool, rest: bool) -> None:
    if not counts:
        header = attrs.evolve(header, counts=())
    if not rest:
        header = attrs.evolve(header, step=1, base=0)
    data = header.encode()
    # The quick way writes its two numbers in their widest form.
    assert decode_map(data, limits.HEADER_BYTES_MAX) == decode_map(Header.encode(header), limits.HEADER_BYTES_MAX)
    assert list(decode_map(data, limits.HEADER_BYTES_MAX)) == list(
        decode_map(Header.encode(header), limits.HEADER_BYTES_MAX)
    )
    assert Deliver.decode(data) == Header.decode.__func__(Deliver, data) == header  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("address", "x" * 1027), ("address", b"a"), ("producer", bytes(15)), ("producer", "x" * 16), ("number", -1),
        ("number", COUNTER_MAX + 1), ("number", True), ("number", 1.0), ("sequence", -1),
        ("sequence", COUNTER_MAX + 1), ("sequence", False), ("sequence", None),
    ],
)  # fmt: skip
def test_the_quick_way_of_a_delivery_lets_nothing_pass(name: str, value: object) -> None:
    values = {"address": "a", "producer": PRODUCER, "number": 1, "sequence": 1}
    assert Deliver.decode(encode_map(values)) == Deliver(**values)
    refused(Deliver, **{**values, name: value})
    refused(Deliver)


def test_arguments_and_values_are_read_by_name() -> None:
    assert Call(operation="o", arguments=("a", 1, "b", None)).named == {"a": 1, "b": None}
    assert Answer(values=("a", b"x")).named == {"a": b"x"}
    assert Call(operation="o").named == {}


@pytest.mark.parametrize("flat", [("a",), (1, 2), ("a", 1, "b"), ("a", 1, "a", 2), (b"a", 1)])
def test_what_is_not_names_and_values_in_turn_is_refused(flat: tuple[Any, ...]) -> None:
    for header in (Call(operation="o", arguments=flat), Answer(values=flat)):
        with pytest.raises(RemoteProtocolError) as caught:
            _ = header.named
        assert caught.value.refusal == "bad_header"


def test_a_header_is_read_as_what_its_frame_is() -> None:
    with pytest.raises(InvariantError):
        header_of(Frame(FrameType.CALL, header=b"\x80"), Answer)


def test_the_session_that_a_client_had_travels_whole() -> None:
    attach = Attach(session=7, key=PRODUCER, received=COUNTER_MAX, ttl_ms=1, window_bytes=2)
    assert Attach.decode(attach.encode()) == attach
    attached = Attached(session=7, key=PRODUCER, resumed=True, received=9, ttl_ms=3)
    assert Attached.decode(attached.encode()) == attached
    refused(Attached, session=7, key=PRODUCER, resumed=1)
