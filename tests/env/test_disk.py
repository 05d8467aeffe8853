"""The real disk."""

from __future__ import annotations

import errno
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshq.abc import Disk
from meshq.env import RealDisk, _disk
from meshq.store import is_disk_full
from meshq.testing import DISK_CHECKS


@pytest.mark.parametrize("check", DISK_CHECKS)
def test_the_real_disk_conforms(check: Callable[[Disk, str], None], tmp_path: Path) -> None:
    check(RealDisk(), str(tmp_path))


def test_files_and_directories_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        RealDisk().make_directory(f"{tmp_path}/a/b")
        RealDisk().open(f"{tmp_path}/a/b/file", create=True).close()
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/file")]
    assert modes == [0o700, 0o700, 0o600]


def test_directories_are_made_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    RealDisk().make_directory("data/shop/")
    RealDisk().make_directory("data/shop/")
    assert (tmp_path / "data/shop").is_dir()
    with pytest.raises(FileNotFoundError):
        RealDisk().make_directory("")


def test_a_directory_is_removed_when_nothing_is_left_in_it_and_no_link_to_one_is_followed(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.make_directory(f"{tmp_path}/d/x")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    with pytest.raises(OSError, match="not empty"):
        disk.remove(f"{tmp_path}/d")
    disk.remove(f"{tmp_path}/d/x")
    disk.remove(f"{tmp_path}/link")
    assert disk.names(str(tmp_path)) == ["d"]
    with pytest.raises(FileNotFoundError):
        disk.remove(f"{tmp_path}/d/x")


def test_where_no_directory_can_be_made_the_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for path in ("/proc/meshq", "/proc/meshq/a", f"{tmp_path}/link", f"{tmp_path}/link/a", f"{tmp_path}/file/a"):
        with pytest.raises(OSError, match=r"No such file|File exists|Not a directory"):
            RealDisk().make_directory(path)


def test_short_writes_are_continued_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    calls = []

    def seven_at_most(descriptor: int, buffers: list[bytes], offset: int) -> int:
        data = b"".join(bytes(memoryview(buffer).cast("B")) for buffer in buffers)[:7]
        calls.append((offset, data))
        return real(descriptor, [data], offset)

    monkeypatch.setattr(os, "pwritev", seven_at_most)
    file = RealDisk().open(f"{tmp_path}/file", create=True)
    file.write_at(5, [b"abc", b"", memoryview(b"defghijk").cast("I"), b"lmnopqrstuvwxyz"])
    assert file.read_at(5, 100) == b"abcdefghijklmnopqrstuvwxyz"
    assert [offset for offset, _ in calls] == [5, 12, 19, 26]
    file.close()


def test_a_system_that_writes_nothing_is_an_error_not_an_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().open(f"{tmp_path}/file", create=True)
    answers = [2, 0]
    monkeypatch.setattr(os, "pwritev", lambda *_: answers.pop(0))
    with pytest.raises(OSError, match="wrote nothing") as caught:
        file.write_at(0, [b"abc"])
    assert caught.value.errno == errno.EIO
    file.close()


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    file = RealDisk().open(f"{tmp_path}/file", create=True)
    file.write_at(0, [b"0123456789"])
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: real(descriptor, min(size, 3), offset))
    assert file.read_at(1, 8) == b"12345678"
    assert file.read_at(1, 100) == b"123456789"
    file.close()


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_after_a_failure_nothing_is_written_or_synced(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().open(f"{tmp_path}/file", create=True)
    file.write_at(0, [b"before"])
    calls = []

    def fail(*arguments: object) -> None:
        calls.append(arguments)
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(OSError, match="no space"):
            file.write_at(0, [b"x"])
            file.sync()
    assert len(calls) == 1
    for again in (file.sync, lambda: file.write_at(0, [b"after"])):
        with pytest.raises(OSError, match="an earlier write or sync failed") as caught:
            again()
        assert caught.value.errno == errno.EIO
        assert isinstance(caught.value.__cause__, OSError)
    assert file.read_at(1, 5) == b"efore"
    assert "failed" in repr(file)
    file.close()
    assert "closed" in repr(file)


class Exhausted:
    """A function that opens something and finds no descriptor for a while."""

    def __init__(self, function: Any, times: float, number: int = errno.EMFILE) -> None:
        self._function = function
        self._number = number
        self.left = times

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            raise OSError(self._number, os.strerror(self._number))
        return self._function(*arguments, **keywords)


@pytest.mark.real
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_what_is_there_waits_for_a_descriptor_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    monkeypatch.setattr(_disk, "DESCRIPTOR_PAUSE_S", 0.001)
    disk = RealDisk()
    disk.open(f"{tmp_path}/file", create=True).close()
    with caplog.at_level(logging.INFO, "meshq.env"):
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", Exhausted(os.open, 5, number))
            disk.open(f"{tmp_path}/file").close()
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", Exhausted(os.open, 5, number))
            disk.sync_directory(str(tmp_path))
        with monkeypatch.context() as patched:
            patched.setattr(os, "listdir", Exhausted(os.listdir, 5, number))
            assert disk.names(str(tmp_path)) == ["file"]
    events = [record.__dict__["event"] for record in caplog.records]
    assert events == ["no_descriptor", "descriptor_found"] * 3
    assert f"{tmp_path}/file can't be opened: {os.strerror(number)}" in caplog.text


@pytest.mark.real
def test_a_new_file_is_refused_when_no_descriptor_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_disk, "DESCRIPTOR_PAUSE_S", 0.001)
    monkeypatch.setattr(_disk, "CREATE_PATIENCE_S", 0.05)
    disk = RealDisk()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", Exhausted(os.open, math.inf))
        with pytest.raises(OSError, match="Too many open files") as caught:
            disk.open(f"{tmp_path}/file", create=True)
    assert is_disk_full(caught.value)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", Exhausted(os.open, 5))
        disk.open(f"{tmp_path}/file", create=True).close()


@pytest.mark.real
def test_a_wrong_path_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealDisk().open(f"{tmp_path}/nowhere")


def test_a_full_disk_says_so(tmp_path: Path) -> None:
    """A write that the system takes only in part comes back as the error of the rest."""
    program = """if True:
        import resource, signal, sys
        from meshq.env import RealDisk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        file = RealDisk().open(sys.argv[1], create=True)
        try:
            file.write_at(0, [b"x" * 6_000, b"y" * 6_000])
        except OSError as error:
            print(error.errno, file.size())
    """
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(errno.EFBIG), "10000"]


def test_a_lock_is_refused_across_processes_and_freed_by_death(tmp_path: Path) -> None:
    program = """if True:
        import os, sys
        from meshq.env import RealDisk
        file = RealDisk().open(sys.argv[1])
        print(file.lock(), flush=True)
        sys.stdin.read()
    """
    path = str(tmp_path / "lock")
    mine = RealDisk().open(path, create=True)
    other = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not mine.lock()
        other.kill()
    assert mine.lock()
    mine.close()


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    disk = RealDisk()
    disk.make_directory(f"{tmp_path}/a")
    for number in range(5):
        file = disk.open(f"{tmp_path}/a/{number}", create=True)
        file.lock()
        file.close()
    disk.sync_directory(f"{tmp_path}/a")
    with pytest.raises(OSError, match="No such file"):
        disk.sync_directory(f"{tmp_path}/b")
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_where_files_can_not_be_locked_a_store_is_refused(tmp_path: Path) -> None:
    """Without fcntl, as on Windows, the package loads and its network works; only files are refused."""
    program = """if True:
        import sys
        sys.modules["fcntl"] = None
        import os, trio
        del os.sysconf, os.register_at_fork, os.O_CLOEXEC, os.O_DIRECTORY
        from meshq.env import _network, real_env

        _network.GATHERS = False
        env = real_env()
        for call in (lambda: env.disk.open(sys.argv[1], create=True), lambda: env.disk.sync_directory(".")):
            try:
                call()
            except OSError as error:
                print(error.strerror)

        async def main():
            listener = await env.network.listen("127.0.0.1", 0)
            near = await env.network.connect("127.0.0.1", listener.port)
            far = await listener.accept()
            size = 32 << 20
            near.send_nowait(bytes(size))
            near.send_nowait(b"end")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.flush)
                heard = bytearray()
                while len(heard) < size + 3:
                    heard += await far.receive(1 << 20)
            print(len(heard) - size, bytes(heard[-3:]))

        trio.run(main)
    """
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, text=True)
    refusal = "a store needs a POSIX system (file locks, directory syncs)"
    assert done.stdout.splitlines() == [refusal, refusal, "3 b'end'"], done.stderr
