"""A process that outlives a run of the tests by a moment, and removes what the run has left: processes and files.

``python tests/sweeper.py FOLDER`` waits until its input ends, or until its parent has gone, which comes with the end of
the run even by SIGKILL.
It kills every process that has the folder in its environment, unmounts what is mounted there and removes the folder.
It needs the standard library only and starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

#: The variable in which the processes of a run inherit the folder of the run.
MARK = "MESHQ_TESTS"
#: A process may start another one while it is looked for.
SWEEP_S_MAX = 10.0
#: Between two looks at whether the parent is still there.
LOOK_S = 1.0
PROC = Path("/proc")


def start_sweeper(folder: Path) -> subprocess.Popen[bytes]:
    """Start the sweeper: in a session of its own, where Ctrl-C does not reach it, and without the mark."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder)],
        stdin=subprocess.PIPE,
        env=environment,
        cwd="/",
        start_new_session=True,
    )


def read(path: Path) -> bytes:
    """A small file; nothing if it has gone, or belongs to somebody else."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def processes_of(folder: Path) -> list[int]:
    """Every process that has inherited the mark of this folder; a zombie has no environment."""
    mark = f"{MARK}={folder}".encode()
    found = [int(path.name) for path in PROC.glob("[0-9]*") if mark in read(path / "environ").split(b"\0")]
    return [pid for pid in found if pid != os.getpid()]


def children(pid: int) -> list[int]:
    """The children of a process; none where the kernel does not say."""
    return [int(child) for task in PROC.glob(f"{pid}/task/[0-9]*") for child in read(task / "children").split()]


def descendants(pid: int) -> Iterator[int]:
    """The children of a process, and theirs."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def command(pid: int) -> str:
    """The command of a process; nothing while it starts, or when it has ended."""
    return " ".join(read(PROC / str(pid) / "cmdline").decode(errors="replace").split("\0")).strip()


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return read(PROC / str(pid) / "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"], [b"X"])


def kill(pid: int) -> None:
    """Kill a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def remove(path: Path) -> None:
    """Remove a file, or a folder with what is mounted in it."""
    mounts = [line.split()[1] for line in read(PROC / "self/mounts").decode(errors="replace").splitlines()]
    for mount in reversed(mounts):
        if Path(mount).is_relative_to(path):
            subprocess.run(["umount", "--lazy", mount], stderr=subprocess.DEVNULL, check=False)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def wait(parent: int) -> None:
    """Return when the run has ended.  A child that the run has forked may hold the other end of the pipe."""
    while os.getppid() == parent and not select.select([sys.stdin], [], [], LOOK_S)[0]:
        pass


def sweep(folder: Path) -> None:
    """Leave nothing of a run."""
    deadline = time.monotonic() + SWEEP_S_MAX
    while (found := processes_of(folder)) and time.monotonic() < deadline:
        for pid in found:
            kill(pid)
        time.sleep(0.02)
    remove(folder)


if __name__ == "__main__":
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    wait(os.getppid())
    sweep(Path(sys.argv[1]))
