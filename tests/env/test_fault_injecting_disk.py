"""The disk that fails on purpose."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from meshq.abc import Disk
from meshq.env import FaultInjectingDisk, RealDisk
from meshq.testing import DISK_CHECKS

#: Two files; three writes, two syncs of files and one of the directory; four changes of names.
PROGRAM = """if True:
    import sys
    from meshq.env import FaultInjectingDisk, RealDisk
    root, at, action = sys.argv[1], eval(sys.argv[2]), sys.argv[3]
    disk = FaultInjectingDisk(RealDisk(), at=at, action=action)
    disk.make_directory(root)
    one, two = disk.open(root + "/one", create=True), disk.open(root + "/two", create=True)
    one.write_at(0, [b"first "])
    two.write_at(0, [b"other"])
    one.sync()
    one.write_at(6, [b"second"])
    two.sync()
    disk.replace(root + "/two", root + "/three")
    disk.sync_directory(root)
    print(disk.calls)
"""


def run(root: Path, at: dict[str, int], action: str = "kill") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root / "data"), repr(at), action], capture_output=True, text=True
    )


def content(root: Path) -> dict[str, str]:
    if not (root / "data").exists():
        return {}
    return {path.name: path.read_text() for path in sorted((root / "data").iterdir())}


@pytest.mark.parametrize("check", DISK_CHECKS)
def test_a_disk_whose_fuse_holds_conforms(check: Callable[[Disk, str], None], tmp_path: Path) -> None:
    check(FaultInjectingDisk(RealDisk(), at={}), str(tmp_path))


def test_a_run_without_a_fuse_counts_the_calls_there_are_to_try(tmp_path: Path) -> None:
    done = run(tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'write': 3, 'sync': 3, 'name': 4}"
    assert content(tmp_path) == {"one": "first second", "three": "other"}


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ({"write": 1}, {"one": "", "two": ""}),
        ({"write": 2}, {"one": "first ", "two": ""}),
        ({"write": 3}, {"one": "first ", "two": "other"}),
        ({"sync": 1}, {"one": "first ", "two": "other"}),
        ({"sync": 2}, {"one": "first second", "two": "other"}),
        ({"sync": 3}, {"one": "first second", "three": "other"}),
        ({"name": 1}, {}),
        ({"name": 3}, {"one": ""}),
        ({"name": 4}, {"one": "first second", "two": "other"}),
        ({"write": 3, "sync": 1}, {"one": "first ", "two": "other"}),
    ],
)
def test_the_process_is_killed_before_the_named_call(at: dict[str, int], left: dict[str, str], tmp_path: Path) -> None:
    assert run(tmp_path, at).returncode == -signal.SIGKILL
    assert content(tmp_path) == left


def test_a_torn_write_leaves_half_of_its_bytes(tmp_path: Path) -> None:
    assert run(tmp_path, {"write": 3}, "tear").returncode == -signal.SIGKILL
    assert content(tmp_path) == {"one": "first sec", "two": "other"}


@pytest.mark.parametrize(("action", "number"), [("eio", errno.EIO), ("enospc", errno.ENOSPC)])
def test_one_call_fails_or_all_from_it_on(action: str, number: int, tmp_path: Path) -> None:
    for forever in (False, True):
        disk = FaultInjectingDisk(RealDisk(), at={"write": 2}, action=action, forever=forever)  # type: ignore[arg-type]
        files = [disk.open(f"{tmp_path}/{action} {forever} {index}", create=True) for index in range(4)]
        failed = []
        for index, file in enumerate(files):
            try:
                file.write_at(0, [b"x"])
            except OSError as error:
                assert error.errno == number
                failed.append(index)
            file.close()
        assert failed == ([1, 2, 3] if forever else [1])


def test_calls_of_all_threads_are_counted_once_each(tmp_path: Path) -> None:
    disk = FaultInjectingDisk(RealDisk(), at={"write": 501}, action="eio")
    failures: list[OSError] = []

    def write(number: int) -> None:
        file = disk.open(f"{tmp_path}/{number}", create=True)
        for _ in range(250):
            try:
                file.write_at(0, [b"x"])
            except OSError as error:
                failures.append(error)
        file.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.calls["write"] == 1_000
    assert len(failures) == 1


@pytest.mark.parametrize("wrong", [{"read": 1}, {"write": 0}, {"sync": -1}])
def test_a_fuse_that_could_never_burn_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        FaultInjectingDisk(RealDisk(), at=wrong)  # type: ignore[arg-type]
