"""Columns, properties, losses and decisions: what the data source decides about rows and batches."""

from __future__ import annotations

import pytest

from meshq.errors import SettingsError, UsageError
from meshq.spark._columns_plan import (
    HEADERS_TYPE,
    SINK,
    check_read,
    check_written,
    columns_read,
    ddl_of,
)
from meshq.spark._losses_plan import Loss, loss_error, losses_among
from meshq.spark._properties_format import as_bytes, as_text, key_bytes, merged, shown_without_key
from meshq.spark._sink_plan import Decision, StageResult, check_alone, decision_of, node_of_sink

BASE = "key binary, value binary NOT NULL, topic string NOT NULL, partition int NOT NULL, offset bigint NOT NULL, "


def test_the_columns_are_kafkas_and_more_with_options() -> None:
    assert ddl_of(columns_read(frozenset())) == f"{BASE}timestamp timestamp NOT NULL"
    names = [column.name for column in columns_read(frozenset({"includeHeaders", "includeMetadata"}))]
    assert names[6:] == [
        *("headers", "node", "message_id", "delivery_count", "priority", "expiration", "correlation_id"),
        *("reply_to", "content_type", "duplicate_id", "group_id", "durable", "properties"),
    ]
    nullable = [
        column.name for column in columns_read(frozenset({"includeHeaders", "includeMetadata"})) if column.nullable
    ]
    assert nullable == [
        *("key", "expiration", "correlation_id", "reply_to", "content_type", "duplicate_id", "group_id")
    ]


def test_a_schema_of_the_users_own_has_our_names_and_types() -> None:
    check_read([("offset", "bigint"), ("headers", HEADERS_TYPE)])
    with pytest.raises(SettingsError, match="did you mean 'offset'"):
        check_read([("offsets", "bigint")])
    with pytest.raises(SettingsError, match="binary") as caught:
        check_read([("value", "string")])
    assert caught.value.setting == "schema['value']"


def test_what_can_be_written() -> None:
    every = [(name, kinds[0]) for name, kinds in SINK.items() if kinds]
    check_written([*every, ("properties", "map<string,bigint>")], topic=False)
    check_written([("value", "string"), ("properties", "struct<a:int,b:double>")], topic=True)
    check_written([("value", "string"), ("properties", "struct<>")], topic=True)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ([], "a column 'value'"),
        ([("value", "int")], "binary or string"),
        ([("value", "string"), ("value", "string")], "each column once"),
        ([("value", "string"), ("offset", "bigint")], "the columns of a write are"),
        ([("value", "string"), ("topics", "string")], "did you mean 'topic'"),
        ([("value", "string"), ("headers", "map<string,binary>")], "array<struct"),
        ([("value", "string"), ("properties", "string")], "map<string,T> or a struct"),
        ([("value", "string"), ("properties", "map<string,date>")], "map<string,T> or a struct"),
        ([("value", "string"), ("properties", "struct<a:struct<b:int>>")], "map<string,T> or a struct"),
        ([("value", "string")], "the option topic, or a column 'topic'"),
    ],
)
def test_what_can_not_be_written(fields: list[tuple[str, str]], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        check_written(fields, topic=False)


def test_properties_as_bytes_and_as_text() -> None:
    assert [as_bytes(value) for value in (None, b"\x00", "ü", True, 5, 1.5)] == [
        *(None, b"\x00", "ü".encode(), b"true", b"5", b"1.5")
    ]
    assert [as_text(value) for value in (None, b"\x00", "ü", False, 5, 1.5)] == [None, "AA==", "ü", "false", "5", "1.5"]


def test_the_key_is_a_property_of_bytes_or_text() -> None:
    assert [key_bytes(one) for one in ({"key": "k"}, {"key": b"k"}, {"key": 5}, {})] == [b"k", b"k", None, None]
    assert shown_without_key({"z": 1, "key": "k", "a": 2}) == [("a", 2), ("z", 1)]
    assert shown_without_key({"key": 5}) == [("key", 5)]


def test_the_properties_of_a_row() -> None:
    assert merged(None, None, None) is None
    assert merged(b"k", [{"key": "h", "value": b"x"}], [("n", 5), ("none", None)]) == {
        "key": b"k",
        "h": b"x",
        "n": 5,
        "none": None,
    }
    assert merged("k", None, {"a": 1, "b": None}) == {"key": "k", "a": 1}
    for key, headers, properties in (
        ("k", None, {"key": "x"}),
        (None, [{"key": "a", "value": b""}], {"a": 1}),
        (None, [{"key": "a", "value": b""}] * 2, None),
        ("k", [{"key": "key", "value": b""}], None),
    ):
        with pytest.raises(SettingsError, match="each name once"):
            merged(key, headers, properties)
    with pytest.raises(SettingsError, match="headers with a key"):
        merged(None, [{"key": None, "value": b""}], None)


def test_which_holes_are_losses() -> None:
    kinds = ("acknowledged", "consumed", "expired", "lost", "reserved")
    holes = [(number, number + 1, kind) for number, kind in enumerate(kinds, 1)]
    assert losses_among(holes) == [Loss(1, 2, "acknowledged"), Loss(2, 3, "consumed"), Loss(4, 5, "lost")]
    error = loss_error("q@n", Loss(4, 5, "lost"), (1, 9))
    assert (error.partition, error.lo, error.hi, error.outcome) == ("q@n", 4, 5, "not_done")
    assert "[4, 5) of q@n are gone (lost)" in str(error) and "[1, 9)" in str(error)


def test_the_node_of_a_sink() -> None:
    assert node_of_sink("s", {"a": ["x"], "b": ["s"], "c": []}) == "b"
    chosen = {node_of_sink(f"s{number}", {"a": [], "b": [], "c": []}) for number in range(50)}
    assert chosen == {"a", "b", "c"}
    assert node_of_sink("s", {"a": [], "b": []}) == node_of_sink("s", {"b": [], "a": []})
    with pytest.raises(UsageError, match="ledgers of the nodes a, b"):
        node_of_sink("s", {"b": ["s"], "a": ["s"]})


def test_a_batch_replaces_others_only_where_one_node_has_them_all() -> None:
    check_alone(["a"])
    with pytest.raises(UsageError, match="purgeOnOverwrite takes a broker without others, and the cluster has a, b"):
        check_alone(["b", "a"])


def test_what_a_commit_decides() -> None:
    parts = [StageResult("s", "n", 7, 2), StageResult("s", "n", 9, 3)]
    assert decision_of(parts) == Decision("s", "n", (7, 9), 5)
    assert decision_of([]) is None
    assert decision_of([StageResult("s", "n", 0, 2)]) is None
    with pytest.raises(UsageError, match="has written nothing"):
        decision_of([parts[0], None])
    with pytest.raises(UsageError, match="the cluster has changed"):
        decision_of([parts[0], StageResult("s", "m", 9, 3)])
