"""The files of large bodies: what lies there, what is proven, what a start removes and what it refuses."""

from __future__ import annotations

import errno
import random
import re
from pathlib import Path

import pytest

from meshq import limits
from meshq.errors import DamagedError, SettingsError
from meshq.store import LargeBodyFiles
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._large_body_format import (
    HEADER_BYTES,
    TAG_BYTES,
    BlockKeys,
    LargeBodyHeader,
    block_count,
    decode_large_header,
    encode_large_header,
    file_bytes,
    file_name,
    id_in_name,
)
from meshq.store.formats._layout_format import Layout
from meshq.store.inspection._check import check_store
from meshq.testing import SimDisk
from tests.store.kit import Store

BLOCK = limits.LARGE_BLOCK_BYTES
ID = bytes(range(16))
SALT = bytes(range(32, 64))
PAGE = Path(__file__).parents[2] / "docs" / "formats" / "large.md"
KEY = b"k" * 32


def directory(*keys: bytes) -> tuple[SimDisk, LargeBodyFiles]:
    disk = SimDisk(random.Random(0))
    files = LargeBodyFiles(disk, Layout("/store", Keyring(keys)), lambda size: SALT[:size])
    files.prepare()
    return disk, files


def written(files: LargeBodyFiles, size: int, *, body_id: bytes = ID) -> bytes:
    """A body of so many bytes, in as many blocks as it takes."""
    body = random.Random(size).randbytes(size)
    writer = files.create(body_id)
    blocks = [body[start : start + BLOCK] for start in range(0, size, BLOCK)]
    for index, block in enumerate(blocks):
        writer.write([block], last=index == len(blocks) - 1, durable=True)
    writer.finish(durable=True)
    return body


def whole(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def test_the_example_of_the_page_is_what_is_written() -> None:
    disk, files = directory()
    writer = files.create(ID)
    writer.write([b"hello"], last=True, durable=True)
    writer.finish(durable=True)
    shown = "".join(re.findall(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} ?)+)$", PAGE.read_text(), re.M))
    assert whole(disk, f"/store/large/{file_name(ID, whole=True)}") == bytes.fromhex(shown)


@pytest.mark.parametrize("keys", [(), (KEY,)])
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_every_block_comes_back(size: int, keys: tuple[bytes, ...]) -> None:
    disk, files = directory(*keys)
    body = written(files, size)
    got = [files.read(ID, size, number) for number in range(block_count(size))]
    assert b"".join(got) == body
    raw = whole(disk, f"/store/large/{file_name(ID, whole=True)}")
    assert len(raw) == file_bytes(size)
    # A single byte may stand anywhere.
    assert size == 1 or (body[:64] in raw) is not bool(keys)


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_a_flipped_bit_anywhere_is_found(keys: tuple[bytes, ...]) -> None:
    size = BLOCK + 40
    path = f"/store/large/{file_name(ID, whole=True)}"
    ends = (0, 8, 12, 16, 32, 64, 80, HEADER_BYTES, HEADER_BYTES + BLOCK, HEADER_BYTES + BLOCK + TAG_BYTES)
    for at in [*ends, file_bytes(size) - 1, file_bytes(size) - TAG_BYTES - 1]:
        disk, files = directory(*keys)
        written(files, size)
        disk.flip_bit(path, at * 8)
        with pytest.raises((DamagedError, SettingsError)):
            for number in range(2):
                files.read(ID, size, number)


def test_a_block_proves_its_place_its_file_and_that_it_is_the_last() -> None:
    one, other = (BlockKeys(LargeBodyHeader(ID, salt), Keyring(), "f") for salt in (SALT, bytes(32)))
    sealed = b"".join(map(bytes, one.seal(3, b"block", last=False)))
    assert one.open(3, sealed, last=False) == b"block"
    assert one.open(4, sealed, last=False) is None
    assert one.open(3, sealed, last=True) is None
    assert other.open(3, sealed, last=False) is None
    assert one.open(3, b"", last=False) is None
    assert one.open(3, sealed[:TAG_BYTES], last=False) is None


def test_a_body_of_another_key_is_refused_by_the_keys_name() -> None:
    disk, files = directory(KEY)
    written(files, 10)
    stranger = LargeBodyFiles(disk, Layout("/store", Keyring([b"o" * 32])), lambda size: SALT[:size])
    with pytest.raises(SettingsError, match="encryption_keys"):
        stranger.read(ID, 10, 0)
    both = LargeBodyFiles(disk, Layout("/store", Keyring([b"o" * 32, KEY])), lambda size: SALT[:size])
    assert len(both.read(ID, 10, 0)) == 10


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_a_body_under_another_bodys_name_is_damage(keys: tuple[bytes, ...]) -> None:
    disk, files = directory(*keys)
    other = bytes(reversed(ID))
    body = written(files, 10)
    written(files, 10, body_id=other)
    assert files.read(ID, 10, 0) == body
    # Whole, of the same length and of the same key: only its header says whose it is.
    disk.replace(f"/store/large/{file_name(other, whole=True)}", f"/store/large/{file_name(ID, whole=True)}")
    with pytest.raises(DamagedError, match=f"expected body {ID.hex()}, found {other.hex()}"):
        files.read(ID, 10, 0)


def test_a_newer_version_is_refused_and_an_unreadable_header_is_damage() -> None:
    data = encode_large_header(LargeBodyHeader(ID, SALT))
    assert decode_large_header(data, "f") == LargeBodyHeader(ID, SALT)
    with pytest.raises(SettingsError, match="version 9"):
        decode_large_header(encode_large_header(LargeBodyHeader(ID, SALT), version=9), "f")
    for wrong in (data[:-1], b"X" + data[1:], data[:-1] + bytes([data[-1] ^ 1])):
        with pytest.raises(DamagedError):
            decode_large_header(wrong, "f")


def test_names_are_ids_and_nothing_else() -> None:
    for whole_file in (True, False):
        assert id_in_name(file_name(ID, whole=whole_file)) == ID
    for name in ("x.body", ID.hex(), ID.hex() + ".tmp", ID.hex().upper() + ".body", "0" * 31 + ".part", ""):
        assert id_in_name(name) is None


def test_a_start_keeps_the_living_and_removes_the_rest() -> None:
    disk, files = directory()
    sizes = {bytes([number]) * 16: 100 + number for number in range(4)}
    for body_id, size in sizes.items():
        written(files, size, body_id=body_id)
    half = files.create(b"h" * 16)
    half.write([bytes(BLOCK)], last=False, durable=True)
    half.close()
    disk.open("/store/large/README", create=True).close()
    living = dict(list(sizes.items())[:2])
    assert files.sweep(living) == 3
    assert sorted(disk.names("/store/large")) == sorted(["README", *[file_name(one, whole=True) for one in living]])
    assert files.sweep(living) == 0


def test_a_body_that_is_not_there_as_it_should_be_refuses_the_start() -> None:
    _, files = directory()
    written(files, 100)
    with pytest.raises(DamagedError, match="no such file"):
        files.sweep({ID: 100, bytes(16): 5})
    with pytest.raises(DamagedError, match=str(file_bytes(101))):
        files.sweep({ID: 101})


def test_what_is_given_up_is_gone() -> None:
    disk, files = directory()
    writer = files.create(ID)
    writer.write([bytes(BLOCK), bytes(BLOCK)], last=False, durable=True)
    writer.abandon()
    assert disk.names("/store/large") == []
    written(files, 10)
    files.remove(ID)
    assert disk.names("/store/large") == []
    with pytest.raises(FileNotFoundError):
        files.read(ID, 10, 0)


def test_a_body_survives_a_loss_of_power_once_it_is_finished_and_its_part_never_passes_for_it() -> None:
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        files = LargeBodyFiles(disk, Layout("/store"), lambda size: SALT[:size])
        files.prepare()
        body = written(files, 2 * BLOCK + 7)
        half = files.create(b"h" * 16)
        half.write([bytes(BLOCK)], last=True, durable=True)
        disk.power_loss()
        files = LargeBodyFiles(disk, Layout("/store"), lambda size: SALT[:size])
        got = [files.read(ID, 2 * BLOCK + 7, number) for number in range(3)]
        assert b"".join(got) == body
        files.sweep({ID: 2 * BLOCK + 7})
        assert disk.names("/store/large") == [file_name(ID, whole=True)]


async def test_the_checker_accounts_for_every_byte_of_bodies(store: Store) -> None:
    journal = store.journal()
    await journal.open()
    files = journal.large_files()
    files.prepare()
    written(files, 2 * BLOCK)
    half = files.create(b"h" * 16)
    half.write([bytes(BLOCK)], last=False, durable=True)
    half.close()
    await journal.aclose()
    report = store.report()
    assert report.clean
    assert report.sums()["body"] == (2, 2 * (BLOCK + TAG_BYTES))
    assert report.sums()["unfinished"] == (1, HEADER_BYTES + BLOCK + TAG_BYTES)
    path = f"/store/large/{file_name(ID, whole=True)}"
    store.disk.flip_bit(path, 8 * (HEADER_BYTES + BLOCK + TAG_BYTES + 5))
    report = check_store(store.disk, "/store", Keyring(store.keys))
    store.damaged = True
    assert not report.clean and any("block 1" in text for text in report.damage)
    assert report.sums()["body"] == (1, BLOCK + TAG_BYTES)
    store.disk.open("/store/large/what", create=True).close()
    assert any(region.what == "unknown" for region in check_store(store.disk, "/store").regions)


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_body_is_synced_while_it_comes_in(durable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.store.bodies._large_bodies.LARGE_SYNC_BYTES", 2 * BLOCK)
    disk, files = directory()
    syncs = []
    disk.watch = lambda operation: syncs.append(operation.call) if operation.call == "sync" else None
    writer = files.create(ID)
    for _ in range(7):
        writer.write([bytes(BLOCK)], last=False, durable=durable)
    assert len(syncs) == (3 if durable else 0)
    writer.write([b"x"], last=True, durable=durable)
    writer.finish(durable=durable)
    assert len(syncs) == (4 if durable else 0)


def test_a_body_that_could_not_be_begun_leaves_nothing() -> None:
    disk, files = directory()
    disk.faults.inject("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        files.create(ID)
    assert disk.names("/store/large") == []
    assert written(files, 10)


def test_a_start_without_the_key_of_a_body_that_is_needed_is_refused_and_nothing_is_removed() -> None:
    """Compaction carries records over to a new key, and never a body."""
    disk, files = directory(KEY)
    written(files, 10)
    written(files, 10, body_id=b"o" * 16)
    for keys in ((), (b"o" * 32,)):
        stranger = LargeBodyFiles(disk, Layout("/store", Keyring(keys)), lambda size: SALT[:size])
        with pytest.raises(SettingsError, match="encryption_keys"):
            stranger.sweep({ID: 10})
        assert len(disk.names("/store/large")) == 2
    # What nobody needs goes, whatever it was encrypted with.
    stranger = LargeBodyFiles(disk, Layout("/store", Keyring([b"o" * 32])), lambda size: SALT[:size])
    assert stranger.sweep({}) == 2


def test_a_body_whose_header_is_damaged_keeps_nobody_from_starting() -> None:
    disk, files = directory(KEY)
    written(files, 10)
    file = disk.open(f"/store/large/{file_name(ID, whole=True)}")
    file.write_at(70, [b"?"])
    file.close()
    assert files.sweep({ID: 10}) == 0
    with pytest.raises(DamagedError):
        files.read(ID, 10, 0)
