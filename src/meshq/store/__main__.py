"""``python -m meshq.store check DIR`` accounts for every byte of a store; ``dump DIR`` prints its records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from meshq.abc import Disk, File
from meshq.errors import MeshqError, SettingsError
from meshq.limits import ENCRYPTION_KEY_BYTES
from meshq.settings import EncryptionKey, encryption_keys
from meshq.store.directory._directories import take_lock
from meshq.store.directory._ping_pong_file import read_whole
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import Layout
from meshq.store.inspection._check import check_store
from meshq.store.inspection._dump import dump_store

_KEY_FILE: Final = "a file of a key's 32 bytes, or of keys in hexadecimal digits, one a line; may be given again"
#: Exit statuses: the store is good; the store is damaged or has unknown files; the store could not be read.
GOOD, BAD, NOT_LOOKED_AT = 0, 1, 2


def main(arguments: Sequence[str] | None = None, disk: Disk | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m meshq.store", description=__doc__)
    parser.add_argument("command", choices=("check", "dump"))
    parser.add_argument("directory")
    parser.add_argument("--key-file", action="append", default=[], help=_KEY_FILE)
    given = parser.parse_args(arguments)
    if disk is None:
        from meshq.env import RealDisk

        disk = RealDisk()
    lock: File | None = None
    try:
        if "lock" in _names(disk, given.directory):
            lock = take_lock(disk, Layout(given.directory))
        keys = encryption_keys([key for path in given.key_file for key in _keys(disk, path)])
        keyring = Keyring([key.reveal() for key in keys])
        run = _check if given.command == "check" else _dump
        return run(disk, given.directory, keyring)
    except BrokenPipeError:
        return GOOD
    except (MeshqError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return NOT_LOOKED_AT
    finally:
        if lock is not None:
            lock.close()


def _names(disk: Disk, directory: str) -> list[str]:
    try:
        return disk.names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _keys(disk: Disk, path: str) -> list[EncryptionKey]:
    """Read a key file into the keys that a broker's settings take."""
    content = read_whole(disk, path)
    if len(content) == ENCRYPTION_KEY_BYTES:
        return [EncryptionKey(content)]
    try:
        return [EncryptionKey(line) for line in content.decode("ascii").splitlines() if line] or [EncryptionKey("")]
    except (UnicodeDecodeError, SettingsError) as error:
        allowed = f"a file of {ENCRYPTION_KEY_BYTES} bytes, or of twice as many hexadecimal digits in each line"
        raise SettingsError("--key-file", path, f"{allowed}; it has {len(content)} bytes") from error


def _check(disk: Disk, directory: str, keyring: Keyring) -> int:
    report = check_store(disk, directory, keyring)
    for what, (count, size) in sorted(report.sums().items()):
        print(f"{what:22} {count:8} {size:14} bytes")
    print(f"{'all':22} {len(report.regions):8} {report.bytes:14} bytes")
    for region in report.regions:
        if region.what in ("damage", "unknown"):
            print(f"{region.what}: {region.file} from {region.offset}, {region.size} bytes {region.note}".rstrip())
    for problem in report.damage:
        print(problem)
    print("every byte is accounted for" if report.clean else "this store is not as it was written")
    return GOOD if report.clean else BAD


def _dump(disk: Disk, directory: str, keyring: Keyring) -> int:
    for line in dump_store(disk, directory, keyring):
        print(line)
    return GOOD


if __name__ == "__main__":
    sys.exit(main())
