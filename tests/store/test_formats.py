"""The bytes: the example of the document, the store of each released version, what a batch refuses to be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshq.errors import DamagedError, InvariantError
from meshq.store.formats._batch_format import (
    CHECKPOINT_BATCH,
    DATA_RECORD,
    HEAD_BYTES,
    KIND_SHIFT,
    TABLE,
    TARGETS,
    BatchData,
    BatchLocation,
    content_problem,
    decode_head,
    encode_batch,
    open_batch,
    pack_targets,
    positions_of,
    records_of,
    unpack_targets,
)
from meshq.store.formats._layout_format import FORMAT_VERSION, Layout, index_number, segment_number
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._record_prefix import RecordPrefix
from meshq.store.formats._scan_format import is_zero, scan
from meshq.store.formats._segment_format import SegmentHeader, SegmentKeys, decode_header, encode_header
from meshq.store.formats._segment_index_format import SegmentIndex, decode_index, encode_index, index_problem
from tests.store.kit import Store
from tests.store.make_journal_data import KEYS as STORE_KEYS

TESTS = Path(__file__).parent.parent
DOCUMENT = TESTS.parent / "docs" / "formats" / "journal.md"
DATA = TESTS / "data" / "formats"
HEADER = SegmentHeader(
    number=1,
    base=1,
    epoch=0,
    node_id=bytes(range(16)),
    journal_id=bytes(range(16, 32)),
    salt=bytes(range(32, 64)),
)
KEYS = SegmentKeys(HEADER)


def _example() -> bytes:
    """The bytes of the worked example: a segment with one batch."""
    rows = [1 << KIND_SHIFT | DATA_RECORD | 5, 1 << KIND_SHIFT | TARGETS | 16]
    batch_data = BatchData(1, rows, [b"hello", pack_targets((1,), ())])
    return encode_header(HEADER) + b"".join(encode_batch(KEYS, BatchLocation(1, 4096, KEYS.genesis, 0), batch_data))


def _document_bytes() -> bytes:
    """The worked example as it is printed; lines that are left out are zeros."""
    lines = re.findall(r"^([0-9a-f]{8})  ((?:[0-9a-f]{2} ){15}[0-9a-f]{2})$", DOCUMENT.read_text(), re.MULTILINE)
    data = bytearray()
    for offset, text in lines:
        data.extend(bytes(int(offset, 16) - len(data)))
        data += bytes.fromhex(text)
    return bytes(data)


def test_the_worked_example_of_the_document_is_what_is_written() -> None:
    assert _document_bytes() == _example()


def test_the_worked_example_of_the_document_can_be_read() -> None:
    data = _document_bytes()
    entry = SegmentEntry(number=1, base=1, last=0, length=4096, tag=KEYS.genesis)
    found = scan(data, "example", entry)
    assert found.header == HEADER
    assert found.tail == "none"
    (batch,) = found.batches
    (hello, note) = records_of(data, batch)
    assert (hello[0], data[hello[2] : hello[3]]) == (1, b"hello")
    assert note[0] == 2
    assert unpack_targets(data, note[2])[:2] == ((1,), ())
    assert batch.end == len(data) == 4096 + 512


def test_the_document_names_the_version() -> None:
    assert DOCUMENT.read_text().startswith(f"# The journal, versions 1 and {FORMAT_VERSION}\n")


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
async def test_a_store_of_each_version_is_read(store: Store, version: int) -> None:
    directory = DATA / f"journal-{version}"
    store.keys = STORE_KEYS if version > 1 else ()
    whole = directory / "store"
    for path in sorted(whole.rglob("*")):
        if path.is_file():
            target = f"/store/{path.relative_to(whole)}"
            store.disk.make_directory(target.rpartition("/")[0])
            file = store.disk.open(target, create=True)
            file.write_at(0, [path.read_bytes()])
            file.sync()
    assert store.report().clean
    assert {"torn tail", "watermark", "made ahead", "ballast"} <= set(store.report().sums())
    expected = json.loads((directory / "records.json").read_text())
    found = [
        [r.position, r.kind, r.payload.hex(), list(r.deletes), list(r.refs), not r.tombstone, r.deleted]
        for r in store.records(deleted=True)
    ]
    assert found == expected
    async with store.journal(node_id=bytes(range(16))) as journal:
        assert await journal.append(b"and it goes on") > expected[-1][0]


# -- batches -------------------------------------------------------------------------------------------------------


def _batch(**changes: object) -> bytes:
    batch_data = BatchData(1, [1 << KIND_SHIFT | DATA_RECORD | 5], [b"hello"])._replace(**changes)
    return b"".join(encode_batch(KEYS, BatchLocation(1, 4096, KEYS.genesis, 0), batch_data))


def test_a_batch_is_a_whole_number_of_sectors() -> None:
    for size in (0, 1, 383, 384, 391, 392, 393, 5000):
        assert len(_batch(rows=[1 << KIND_SHIFT | DATA_RECORD | size], parts=[bytes(size)])) % 512 == 0


def test_rows_that_do_not_add_up_are_a_defect() -> None:
    with pytest.raises(InvariantError):
        _batch(parts=[b"hell"])
    with pytest.raises(InvariantError):
        _batch(flags=TABLE)
    with pytest.raises(InvariantError):
        _batch(positions=[1])


def test_a_batch_that_was_written_elsewhere_is_no_batch_here() -> None:
    data = encode_header(HEADER) + bytes(512) + _batch()
    assert decode_head(KEYS, data, 4096 + 512) is None
    assert decode_head(KEYS, encode_header(HEADER) + _batch(), 4096) is not None


def test_a_header_with_any_bit_changed_is_no_header() -> None:
    data = bytearray(encode_header(HEADER) + _batch())
    for bit in range(4096 * 8, (4096 + HEAD_BYTES) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert decode_head(KEYS, data, 4096) is None
        data[bit // 8] ^= 1 << bit % 8
    assert decode_head(KEYS, data, 4096) is not None


def test_a_batch_of_another_segment_is_no_batch_here() -> None:
    other = SegmentKeys(SegmentHeader(**{**_fields(), "salt": bytes(32)}))
    data = encode_header(HEADER) + _batch()
    assert decode_head(other, data, 4096) is None
    assert other.mark != KEYS.mark
    assert other.genesis != KEYS.genesis


def _fields() -> dict[str, object]:
    return {name: getattr(HEADER, name) for name in ("number", "base", "epoch", "node_id", "journal_id", "salt")}


def test_a_body_with_a_whole_segment_in_it_cannot_testify() -> None:
    """A message that contains this very segment, and then the write is torn: no damage."""
    inner = _example() + _batch()
    second, tag = encode_batch(
        KEYS,
        BatchLocation(2, 4608, _example()[-16:], 2),
        BatchData(3, [1 << KIND_SHIFT | DATA_RECORD | len(inner)], [inner]),
    )
    whole = _example() + second + tag
    entry = SegmentEntry(number=1, base=1, last=0, length=4096, tag=KEYS.genesis)
    assert len(scan(whole, "file", entry).batches) == 2
    for cut in range(4608, len(whole), 512):
        torn = whole[:cut] + b"\xee" * 512 + whole[cut + 512 :]
        found = scan(torn, "file", entry)
        assert len(found.batches) == 1
        assert found.tail == "torn"


def test_the_positions_of_a_compacted_batch_stand_in_it() -> None:
    data = encode_header(HEADER) + _batch(
        rows=[1 << KIND_SHIFT | DATA_RECORD | 1] * 3,
        parts=[b"abc"],
        flags=TABLE | CHECKPOINT_BATCH,
        positions=[1, 5, 9],
    )
    header = decode_head(KEYS, data, 4096)
    assert header is not None
    assert list(positions_of(data, header)) == [1, 5, 9]
    assert open_batch(KEYS, memoryview(data), header)
    assert [data[start:end] for _, _, start, end in records_of(data, header)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("location", "batch_data", "problem"),
    [
        (BatchLocation(2, 4096, KEYS.genesis, 0), BatchData(1, [], []), "not 1 after"),
        (BatchLocation(1, 4096, bytes(16), 0), BatchData(1, [], []), "not 1 after"),
        (BatchLocation(1, 4096, KEYS.genesis, 0), BatchData(2, [], []), "from position 2 on, not 1"),
        (BatchLocation(1, 4096, KEYS.genesis, 0), BatchData(0, [], []), "from position 0 on, not 1"),
        (
            BatchLocation(1, 4096, KEYS.genesis, 0),
            BatchData(1, [1 << KIND_SHIFT] * 2, [], TABLE, [5, 5]),
            "positions that do not rise",
        ),
    ],
)
def test_a_genuine_batch_in_the_wrong_place_is_not_taken(
    location: BatchLocation, batch_data: BatchData, problem: str
) -> None:
    data = encode_header(HEADER) + b"".join(encode_batch(KEYS, location, batch_data))
    entry = SegmentEntry(number=1, base=1, last=0, length=4608, tag=KEYS.genesis)
    with pytest.raises(DamagedError, match=problem):
        scan(data, "file", entry)


def test_a_batch_whose_rows_promise_more_than_it_has_is_not_taken() -> None:
    """The tag is right: whoever wrote this had the key and a defect."""
    data = bytearray(encode_header(HEADER) + _batch())
    data[4096 + 96] += 1
    view = memoryview(data)
    header = decode_head(KEYS, data, 4096)
    assert header is not None
    assert "zeros before" in str(content_problem(view, header))


# -- names ---------------------------------------------------------------------------------------------------------


def test_the_name_of_a_segment_is_its_number() -> None:
    path = Layout("/x").segment(0xABC)
    assert path == "/x/journal/0000000000000abc.seg"
    assert segment_number("0000000000000abc.seg") == 0xABC


@pytest.mark.parametrize("name", ["abc.seg", "0000000000000abc", "0000000000000ABC.seg", "000000000000zabc.seg", ""])
def test_other_names_are_no_segments(name: str) -> None:
    assert segment_number(name) is None


def test_zeros_are_told_from_anything_else() -> None:
    for size in (0, 1, 65_536, 65_537, 200_000):
        assert is_zero(memoryview(bytes(size)))
        if size:
            assert not is_zero(memoryview(bytes(size - 1) + b"x"))


def test_a_header_that_was_written_is_read() -> None:
    assert decode_header(encode_header(HEADER), "file") == HEADER


# -- the index of a segment ------------------------------------------------------------------------------------------

INDEX_DOCUMENT = DOCUMENT.with_name("segment-index.md")
SEALED = SegmentEntry(number=1, base=1, last=2, length=4608, tag=_example()[-16:], sealed=True)


def _index_example() -> bytes:
    found = scan(_example(), "example", SEALED)
    two = RecordPrefix(1, lambda kind, payload: (min(2, len(payload)), True))
    return encode_index(found, SEALED, Layout("/store"), bytes(range(64, 96)), two)


def _index_document_bytes() -> bytes:
    lines = re.findall(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} ?)+)$", INDEX_DOCUMENT.read_text(), re.MULTILINE)
    return bytes.fromhex("".join(lines))


def test_the_worked_example_of_an_index_is_what_is_written() -> None:
    assert _index_document_bytes() == _index_example()


def test_the_worked_example_of_an_index_can_be_read() -> None:
    index = decode_index(_index_document_bytes(), HEADER, SEALED, Layout("/store"))
    assert isinstance(index, SegmentIndex)
    (indexed,) = index.batches
    assert (index.form, indexed.offset, indexed.first, indexed.flags, list(indexed.positions)) == (
        1,
        4096,
        1,
        0,
        [1, 2],
    )
    (hello, note) = indexed.records()
    assert (indexed.data[hello[2] : hello[3]], hello[4]) == (b"he", True)
    assert unpack_targets(indexed.data, note[2])[:2] == ((1,), ())
    assert index_problem(index, scan(_example(), "example", SEALED)) is None


def test_an_index_that_disagrees_with_its_segment_is_seen() -> None:
    index = decode_index(_index_document_bytes(), HEADER, SEALED, Layout("/store"))
    assert isinstance(index, SegmentIndex)
    found = scan(_example(), "example", SEALED)
    (indexed,) = index.batches
    wrong = bytes(indexed.data).replace(b"he", b"hi")
    assert index_problem(index._replace(batches=[indexed._replace(data=wrong)]), found)
    assert index_problem(index._replace(batches=[indexed._replace(offset=512)]), found)
    assert index_problem(index._replace(batches=[]), found)


def test_the_name_of_an_index() -> None:
    assert index_number(Layout("/store").index(255).rpartition("/")[2]) == 255
    assert [index_number(name) for name in ("0.idx", "00000000000000fg.idx", "00000000000000ff.seg")] == [None] * 3
