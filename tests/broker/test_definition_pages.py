"""The pages about definitions in the journal say what the code writes and reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshq import limits
from meshq.broker import records
from meshq.broker.records import _state
from meshq.errors import DamagedError
from meshq.store import JournalRecord
from tests.broker.kit import make_core

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
PAGE = (FORMATS / "definitions.md").read_text(encoding="utf-8")
EXAMPLE: list[dict[str, Any]] = [
    {"kind": "address", "name": "news", "routing": "multicast", "on_use": False},
    {
        "kind": "queue",
        "name": "news::eu",
        "address": "news",
        "number": 3,
        "paused": False,
        "subscription": "shared",
        "filter": "a = 1",
        "on_use": False,
    },
    {"kind": "numbers", "last": 1000},
    {"kind": "divert", "name": "d", "address": "news", "forwarding_address": "log", "filter": "", "exclusive": False},
    {"kind": "settings", "pattern": "news", "redelivery_delay": 0.5},
]


def keys_on(page: str) -> dict[str, list[list[str]]]:
    """The rows of a page's table of keys, by kind: the cells behind the kind."""
    found: dict[str, list[list[str]]] = {}
    for line in page.splitlines():
        if line.startswith("| `") and not line.startswith("| `kind`"):
            kind, *cells = (cell.strip() for cell in line.split("|")[1:-1])
            found.setdefault(kind.strip("`"), []).append(cells)
    return found


def test_the_pages_name_every_kind_of_definition_and_every_key() -> None:
    peers = keys_on((FORMATS / "definitions-of-peers.md").read_text(encoding="utf-8"))
    said = {
        kind: {name.strip("` ") for cells in rows for name in cells[0].split(",")}
        for kind, rows in {**keys_on(PAGE), **peers}.items()
    }
    assert said == {
        kind: {*keys, *_state._OPTIONAL.get(kind, {})} - {"kind"} for kind, keys in _state._DEFINITIONS.items()
    }


@pytest.mark.parametrize(("kind", "rows"), keys_on(PAGE).items())
def test_the_page_says_the_type_and_the_default_of_every_key(kind: str, rows: list[list[str]]) -> None:
    names = {str: "text", bool: "bool", int: "int"}
    optional = _state._OPTIONAL.get(kind, {})
    for key, type_name, _, default in rows:
        value = optional.get(key.strip("`"))
        assert type_name == names[_state._DEFINITIONS[kind].get(key.strip("`"), type(value))]
        assert default.partition(":")[0] == {None: "", False: "false", "": "empty"}[value]


def test_the_example_of_the_page_is_written_and_read_as_it_says() -> None:
    found = bytes.fromhex("".join(PAGE.split("```text\n")[1].split("```")[0].split()))
    encoded = [records.encode_definition(values) for values in EXAMPLE]
    assert found == b"".join(encoded)
    assert [records.decode_definition(payload) for payload in encoded] == EXAMPLE
    assert f"at most {limits.HEADER_BYTES_MAX:,} bytes" in PAGE


def test_a_node_recovers_the_example_of_the_page_and_a_queue_in_front_of_its_address() -> None:
    address, queue, *others = (records.encode_definition(values) for values in EXAMPLE)
    core = make_core()
    payloads = [queue, address, *others]
    recovery = core.recovery()
    recovery.take(
        [JournalRecord(number, records.DEFINITION, payload) for number, payload in enumerate(payloads, start=1)]
    )
    recovered = core.router.queues["news::eu"]
    assert (recovered.number, recovered.spec.subscription, recovered.spec.filter_text) == (3, "shared", "a = 1")
    assert core.router.addresses["news"].routing == "multicast"
    assert core.router.diverts.by_name["d"].forwarding_address == "log"
    assert core.router.settings("news").redelivery_delay == 0.5
    assert core.router.last_number >= 1000


def test_a_setting_that_is_not_valid_is_damage() -> None:
    payload = records.encode_definition({"kind": "settings", "pattern": "news", "redelivery_delay": -1.0})
    with pytest.raises(DamagedError, match="settings that can be"):
        make_core().recovery().take([JournalRecord(1, records.DEFINITION, payload)])
