"""Encryption at rest: what lies on the disk says nothing, and only the right key reads it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import trio
import trio.testing

from meshq import EncryptionKey, JournalSettings, Secret, SettingsError
from meshq.store import Journal
from meshq.store.__main__ import main
from meshq.store.formats._layout_format import ENCRYPTED_VERSION, PLAIN_VERSION
from meshq.store.formats._segment_format import decode_header
from tests.store.kit import Store, replayed

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
SECRET = b"the combination is 1-2-3-4-5"


def on_disk(store: Store) -> bytes:
    return b"".join(store.disk.content(name) for name in store.disk.files())


async def filled(store: Store, *payloads: bytes) -> None:
    async with store.journal() as journal:
        await journal.append_many(payloads)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_what_is_written_is_seen_on_the_disk_only_without_a_key(store: Store, encrypted: bool) -> None:
    store.keys = (NEW,) if encrypted else ()
    await filled(store, SECRET)
    assert (SECRET in on_disk(store)) is not encrypted
    async with store.journal() as journal:
        assert [payload for _, payload in await replayed(journal)] == [SECRET]
    assert store.report().clean


@pytest.mark.real
async def test_a_directory_named_from_where_the_program_works_is_encrypted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with Journal("data", encryption_keys=[NEW]) as journal:
        await journal.append(SECRET)
    assert not any(SECRET in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


async def test_the_key_itself_is_nowhere_on_the_disk(store: Store) -> None:
    store.keys = (NEW,)
    await filled(store, SECRET)
    assert NEW not in on_disk(store)
    assert NEW[:8] not in on_disk(store)


@pytest.mark.parametrize("keys", [(), (OLD,)], ids=["none", "another"])
async def test_without_its_key_a_store_is_refused_and_stays_as_it_is(store: Store, keys: tuple[bytes, ...]) -> None:
    store.keys = (NEW,)
    await filled(store, SECRET)
    before = {name: store.disk.content(name) for name in store.disk.files()}
    with pytest.raises(SettingsError, match=r"encryption_keys=.*the key [0-9a-f]{32}, with which .*\.seg is"):
        async with store.journal(encryption_keys=keys):
            pass
    assert {name: store.disk.content(name) for name in store.disk.files()} == before


async def test_a_store_that_was_plain_is_encrypted_from_the_next_segment_on(store: Store) -> None:
    await filled(store, b"plain")
    store.keys = (NEW,)
    await filled(store, SECRET)
    versions = [int.from_bytes(store.disk.content(path)[8:12], "little") for path in store.segments()]
    assert set(versions) == {PLAIN_VERSION, ENCRYPTED_VERSION}
    assert SECRET not in on_disk(store)
    async with store.journal() as journal:
        assert [payload for _, payload in await replayed(journal)] == [b"plain", SECRET]


async def test_a_new_key_encrypts_and_the_old_one_goes_on_reading(store: Store) -> None:
    store.keys = (OLD,)
    await filled(store, b"by the old one")
    store.keys = (NEW, OLD)
    await filled(store, b"by the new one")
    names = {decode_header(store.disk.content(path), path).key_id for path in store.segments()}
    assert len(names) == 2
    async with store.journal() as journal:
        assert [payload for _, payload in await replayed(journal)] == [b"by the old one", b"by the new one"]


async def test_once_what_the_old_key_encrypted_is_gone_it_is_not_needed_any_more(store: Store) -> None:
    store.keys = (OLD,)
    async with store.journal() as journal:
        (position,) = await journal.append_many([b"by the old one"])
    store.keys = (NEW, OLD)
    async with store.journal() as journal:
        await journal.delete(position)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(10)
    store.keys = (NEW,)
    async with store.journal() as journal:
        assert await replayed(journal) == []


async def test_compaction_keeps_what_it_copies_encrypted(store: Store) -> None:
    store.keys = (NEW,)
    async with store.journal(segment_bytes=12 * 1024) as journal:
        fillers = await journal.append_many([SECRET + bytes(700)] * 40)
        for position in fillers[::2]:
            await journal.delete(position)
        store.failpoint["journal.compact_early"] = True
        await trio.sleep(3)
        assert journal.statistics().compactions
    assert SECRET not in on_disk(store)
    async with store.journal() as journal:
        assert len(await replayed(journal)) == 20


async def test_a_swapped_batch_of_the_same_key_is_damage(store: Store) -> None:
    store.keys = (NEW,)
    await filled(store, SECRET)
    path = store.segments()[-1]
    content = store.disk.content(path)
    file = store.disk.open(path)
    file.write_at(4096 + 200, [bytes([content[4096 + 200] ^ 1])])
    file.sync()
    file.close()
    store.damaged = True
    assert not store.report().clean


async def test_the_commands_need_its_key(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.keys = (NEW,)
    await filled(store, SECRET)
    hexadecimal = NEW.hex().encode()
    files = {
        "right": NEW,
        "short": NEW[:31],
        "hex": hexadecimal + b"\n",
        "two": OLD.hex().encode() + b"\n" + hexadecimal,
        "old": OLD,
        "empty": b"",
        "odd": hexadecimal + b"\nnot a key\n",
    }
    for name, content in files.items():
        file = store.disk.open(name, create=True)
        file.write_at(0, [content])
        file.close()
    assert main(["check", "/store"], store.disk) == 2
    assert "encryption_keys" in capsys.readouterr().err
    assert main(["dump", "/store", "--key-file", "short"], store.disk) == 2
    err = capsys.readouterr().err
    assert "a file of 32 bytes, or of twice as many hexadecimal digits in each line; it has 31 bytes" in err
    for wrong in ("empty", "odd"):
        assert main(["check", "/store", "--key-file", wrong], store.disk) == 2
    assert NEW.hex() not in capsys.readouterr().err
    for given in (["hex"], ["two"], ["old", "hex"], ["right", "old"]):
        options = [option for name in given for option in ("--key-file", name)]
        assert main(["check", "/store", *options], store.disk) == 0
    assert main(["check", "/store", "--key-file", "right", "--key-file", "hex"], store.disk) == 2
    assert "different keys" in capsys.readouterr().err
    assert main(["check", "/store", "--key-file", "right"], store.disk) == 0
    assert main(["dump", "/store", "--key-file", "right"], store.disk) == 0
    assert repr(SECRET) in capsys.readouterr().out


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), "0" * 63, "z" * 64, 7, None])
def test_a_key_is_32_bytes_or_64_hexadecimal_digits(key: object) -> None:
    with pytest.raises(SettingsError, match=r"encryption_keys='\*\*\*' is not allowed; allowed: 32 bytes"):
        EncryptionKey(key)  # type: ignore[arg-type]


def test_a_key_may_be_given_in_each_way_and_is_never_printed_or_pickled() -> None:
    keys = [
        EncryptionKey(NEW),
        EncryptionKey(NEW.hex()),
        EncryptionKey(Secret(NEW.hex())),
        EncryptionKey(EncryptionKey(NEW)),
    ]
    assert {key.reveal() for key in keys} == {NEW}
    settings = JournalSettings(encryption_keys=[NEW, OLD.hex()])
    shown = f"{keys} {settings} {settings!r} {Journal('nowhere', encryption_keys=[NEW])!r}"
    assert NEW.hex() not in shown and repr(NEW) not in shown
    with pytest.raises(TypeError):
        pickle.dumps(keys[0])


@pytest.mark.parametrize("keys", [NEW, NEW.hex(), [NEW, NEW], [bytes([n]) * 32 for n in range(65)], 5])
def test_keys_are_a_list_of_different_ones(keys: object) -> None:
    with pytest.raises(SettingsError, match="encryption_keys"):
        JournalSettings(encryption_keys=keys)
