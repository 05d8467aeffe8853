"""The pages about definitions in the journal say what the code writes and reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshq.broker import records
from meshq.broker.records import _state
from meshq.errors import DamagedError
from meshq.store import JournalRecord
from tests.broker.kit import make_core

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
PAGE = (FORMATS / "definitions.md").read_text(encoding="utf-8")
CURSORS = (FORMATS / "cursors.md").read_text(encoding="utf-8")
STAGES = (FORMATS / "stages.md").read_text(encoding="utf-8")
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
        "routes": "",
        "wanted": "",
        "holder": "",
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
    peers = keys_on((FORMATS / "definitions-of-peers.md").read_text(encoding="utf-8")) | keys_on(CURSORS)
    peers |= keys_on(STAGES)
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
    assert f"at most {records.DEFINITION_BYTES_MAX:,} bytes" in PAGE


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


def test_the_example_of_the_page_about_cursors_is_written_and_read_as_it_says() -> None:
    cursor = {"kind": "cursor", "queue": 7, "queue_name": "q", "name": "c", "epoch": 8, "start": 1, "since": 5}
    cursor |= {"processed": 1, "pinned": 1, "lease_ms": 1_000}
    holes = {"kind": "holes", "queue": 7, "epoch": 8, "ranges": records.encode_holes([(3, 5, 0)])}
    found = bytes.fromhex("".join(CURSORS.split("```text\n")[1].split("```")[0].split()))
    payloads = [records.encode_definition(values) for values in (cursor, holes)]
    assert found == b"".join(payloads)
    queue = {"kind": "queue", "name": "q", "address": "q", "number": 7}
    address = {"kind": "address", "name": "q", "routing": "anycast"}
    written = [*payloads, *(records.encode_definition(values) for values in (address, queue))]
    core = make_core()
    core.recovery().take([JournalRecord(at, records.DEFINITION, one) for at, one in enumerate(written, start=1)])
    recovered = core.router.queues["q"].roster.cursor
    assert recovered is not None and (recovered.facts.name, recovered.facts.epoch, recovered.held) == ("c", 8, False)
    assert recovered.holes.of_kind("expired") == [(3, 5)]


def test_holes_that_cant_be_read_are_damage() -> None:
    for ranges in (b"x", records.encode_holes([(3, 5, 9)])):
        payload = records.encode_definition({"kind": "holes", "queue": 7, "epoch": 8, "ranges": ranges})
        with pytest.raises(DamagedError, match="holes of a queue"):
            make_core().recovery().take([JournalRecord(1, records.DEFINITION, payload)])


def test_the_example_of_stages_is_written_and_read_as_it_says() -> None:
    stage = {"kind": "stage", "number": 7, "sink": "s", "batch": 3, "partition": 0, "attempt": 0}
    stage |= {"timeout_ms": 60_000, "user": "", "prepared": True, "dropped": False, "messages": 2}
    sink = {"kind": "sink", "sink": "s", "batch": 3, "user": "", "placing": (7).to_bytes(4, "little")}
    found = bytes.fromhex("".join(STAGES.split("```text\n")[1].split("```")[0].split()))
    payloads = [records.encode_definition(values) for values in (stage, sink)]
    assert found == b"".join(payloads)
    core = make_core()
    core.recovery().take([JournalRecord(at, records.DEFINITION, one) for at, one in enumerate(payloads, start=1)])
    ledger = core.transactions.stages.ledger
    assert ledger.stages[7].life.state == "placing" and ledger.sinks["s"][0].batch == 3
    assert core.router.queues["$meshq.stage.7"].number == 7 and core.router.last_number == 7


def test_numbers_of_stages_that_cant_be_read_are_damage() -> None:
    payload = records.encode_definition({"kind": "sink", "sink": "s", "batch": 3, "placing": b"123"})
    with pytest.raises(DamagedError, match="the numbers of stages"):
        make_core().recovery().take([JournalRecord(1, records.DEFINITION, payload)])
