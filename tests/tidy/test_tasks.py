"""docs/design/tasks.md names every place where a task is started."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.sources import ROOT, Source, python_files

# One process reads all these trees, and once is enough.
pytestmark = [pytest.mark.rules, pytest.mark.xdist_group("tidy")]


def started(source: Source) -> Iterator[str]:
    """``file (function)`` for every task that a file starts; a name that is given as a string tells more."""
    file = source.path.removeprefix("src/meshq/")
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "nursery" in ast.unparse(node.func):
            if node.func.attr not in ("start_soon", "start"):
                continue
            named = [item.value for item in node.args if isinstance(item, ast.Constant)]
            yield f"{file} ({named[0] if named else ast.unparse(node.args[0]).removeprefix('self.')})"


def test_the_table_of_tasks_is_the_code() -> None:
    text = (ROOT / "docs" / "design" / "tasks.md").read_text(encoding="utf-8")
    listed = {f"{file} ({name})" for file, name in re.findall(r"^\| [^|]*`([\w/]+\.py)` \(`([\w.]+)`\)", text, re.M)}
    sources = [
        source
        for source in python_files("src")
        if source.unit in ("node", "broker", "store", "client", "cluster", "discovery", "env", "ha")
    ]
    assert listed == {task for source in sources for task in started(source)}


def test_a_task_that_is_started_is_seen() -> None:
    text = "nursery.start_soon(self._run)\nawait self.nursery.start(other)\nnursery.start_soon(self._guarded, 'commit')"
    source = Source.of("src/meshq/node/_x.py", f"async def f():\n    {text.replace(chr(10), chr(10) + '    ')}\n")
    assert sorted(started(source)) == ["node/_x.py (_run)", "node/_x.py (commit)", "node/_x.py (other)"]
