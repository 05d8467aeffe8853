"""``python -m meshq.store`` on a real disk, and when whoever reads its output goes away."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from meshq.store.__main__ import main
from qa.journal.model import ROOT_DIRECTORY
from tests.store.kit import Store

pytestmark = pytest.mark.real


async def real_copy(store: Store, tmp_path: Path) -> str:
    """A store of three records on a real disk."""
    async with store.journal() as journal:
        await journal.append_many([b"one", b"two", b"three"])
    root = tmp_path / "store"
    for path in store.disk.files():
        file = root / Path(path).relative_to(ROOT_DIRECTORY)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(store.disk.content(path))
    return str(root)


async def test_a_store_on_a_real_disk_is_checked_and_dumped(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = await real_copy(store, tmp_path)
    assert main(["check", directory]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "every byte is accounted for"
    assert main(["dump", directory]) == 0
    assert sum("record" in line for line in capsys.readouterr().out.splitlines()) >= 3


async def test_a_store_on_a_real_disk_that_is_damaged_is_said(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = await real_copy(store, tmp_path)
    (segment,) = (path for path in Path(directory).rglob("*") if path.is_file() and b"two" in path.read_bytes())
    segment.write_bytes(segment.read_bytes().replace(b"two", b"twp"))
    assert main(["check", directory]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "this store is not as it was written"


@pytest.mark.parametrize("command", ["check", "dump"])
async def test_a_reader_that_goes_away_is_no_error(
    store: Store, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = await real_copy(store, tmp_path)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdout", Unbuffered(pipe))
        assert main([command, directory]) == 0
    assert capsys.readouterr().err == ""


class Unbuffered:
    """Text that goes to a pipe at once."""

    def __init__(self, pipe: object) -> None:
        self._pipe = pipe

    def write(self, text: str) -> int:
        """Write all of it."""
        return self._pipe.write(text.encode())  # type: ignore[attr-defined]

    def flush(self) -> None:
        """Nothing waits here."""
