"""How much memory there is to use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshq.env import memory_bytes
from meshq.limits import GIB, MIB

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
UNLIMITED_V1 = "9223372036854771712\n"


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, MACHINE),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{64 * MIB}\n"}, 64 * MIB),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": f"{64 * MIB}\n"}, 64 * MIB),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": f"{32 * MIB}\n",
                "sys/fs/cgroup/a/b/memory.max": f"{64 * MIB}\n",
            },
            32 * MIB,
        ),
        # The path of the host's tree, which a container does not see.
        ({"proc/self/cgroup": "0::/docker/1f\n", "sys/fs/cgroup/memory.max": f"{64 * MIB}\n"}, 64 * MIB),
        (
            {
                "proc/self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/x\nno colons\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{128 * MIB}\n",
            },
            128 * MIB,
        ),
        (
            {"proc/self/cgroup": "5:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": UNLIMITED_V1},
            MACHINE,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "nonsense"}, MACHINE),
    ],
)
def test_the_lowest_limit_around_the_process_holds(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    assert memory_bytes(tree(tmp_path, files)) == expected


def test_a_system_that_does_not_tell_is_taken_for_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert memory_bytes(str(tmp_path)) == GIB
