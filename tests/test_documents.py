"""The programs in the documents run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tools import signatures

from meshq import testing
from meshq.cli._main import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ("README.md", *PAGES)


def programs(name: str) -> list[str]:
    """The Python blocks of a document that are whole programs."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    marks = ("trio.run(", "blocking import", "asyncio.run(", "meshq.testing import")
    return [block for block in blocks if any(mark in block for mark in marks)]


def run_program(code: str, folder: Path) -> str:
    """What a program prints; it must end well and quietly, and see every warning as an error."""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


ALL = [(name, number) for name in DOCUMENTS for number in range(len(programs(name)))]


@pytest.mark.examples
@pytest.mark.parametrize(("name", "number"), ALL)
def test_a_program_in_a_document_runs(name: str, number: int, tmp_path: Path) -> None:
    assert run_program(programs(name)[number], tmp_path) != ""


@pytest.mark.examples
def test_the_readme_shows_what_it_prints(tmp_path: Path) -> None:
    (code,) = programs("README.md")
    assert run_program(code, tmp_path) == "b'42 umbrellas' emea\n"
    assert len(code.splitlines()) <= 20
    assert (tmp_path / "data" / "shop").is_dir()


def test_the_two_commands_of_the_readme_stand_alone_in_blocks() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "```\npip install '.[demo]' && python -m meshq demo\n```" in text
    assert "```\npip install -e '.[test]' && python -m pytest\n```" in text


def test_every_file_that_a_page_names_exists() -> None:
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / "design").glob("*.md")]
    named = [(page.name, path) for page in pages for path in re.findall(r"`([\w./]+/[\w.]+\.py)`", page.read_text())]
    places = [ROOT, ROOT / "src", ROOT / "src" / "meshq", ROOT / "tests"]
    assert len(named) > 10
    assert [(page, path) for page, path in named if not any((place / path).is_file() for place in places)] == []


def test_every_file_that_a_page_of_the_design_names_without_its_folder_exists() -> None:
    there = {path.name for part in ("src", "qa", "tests", "tools") for path in (ROOT / part).rglob("*.py")}
    pages = (ROOT / "docs" / "design").glob("*.md")
    named = [(page.name, name) for page in pages for name in re.findall(r"`(\w+\.py)`", page.read_text("utf-8"))]
    assert len(named) > 50
    assert [(page, name) for page, name in named if name not in there] == []


def test_a_menu_of_the_documents_lists_no_page_twice() -> None:
    listed: Counter[str] = Counter()
    for page in (ROOT / "docs").rglob("*.md"):
        for tree in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            for entry in filter(None, (line for line in tree.splitlines() if not line.startswith(":"))):
                found = [one for one in page.parent.glob(f"{entry}.md") if one != page]
                assert found, f"{page}: there is no {entry}"
                listed.update(one.relative_to(ROOT).as_posix() for one in found)
    assert listed["docs/how-to/benchmarks.md"] == 1
    assert [name for name, count in listed.items() if count > 1] == []


def test_what_is_for_those_who_work_on_it_stands_in_a_menu_of_its_own() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    menus = {
        "caption" in options: entries.split()
        for options, entries in re.findall(r"^```{toctree}\n((?::[^\n]*\n)+)\n(.*?)^```", text, re.M | re.S)
    }
    inner = {"design/index", "formats/index", "decisions/index", "seeded-bugs", "mutants", "results/index"}
    assert "tutorial" in menus[False] and not inner & set(menus[False])
    assert set(menus[True]) == inner
    # The same among the words above: none is an entry of the list in which the tutorial is.
    shown = [line for line in text.splitlines() if line.startswith("- ")]
    assert [line for line in shown if "(tutorial.md)" in line]
    assert [line for line in shown if any(f"({name}.md)" in line for name in inner)] == []


def test_what_there_is_of_a_command_line_is_named_where_the_rest_is_said_to_be_missing() -> None:
    lines = (ROOT / "docs" / "not-yet.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith("| management")]
    assert set(re.findall(r"`meshq ([\w-]+)`", row)) == {*COMMANDS, "demo", "new-test"}


def test_every_public_name_of_the_testing_kit_stands_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r":: meshq\.testing\.(\w+)$|`(\w+)`", page, re.M))
    assert set(testing.__all__) <= {name for pair in named for name in pair}


def test_the_page_of_signatures_is_the_code() -> None:
    assert signatures.PAGE.read_text(encoding="utf-8") == signatures.page(), "run python tools/signatures.py"
    assert "`async .serve(queue, handler, *, concurrency=1" in signatures.page()
    assert " at 0x" not in signatures.page()


def test_no_page_stands_in_two_tables_of_contents() -> None:
    listed: list[Path] = []
    for name in PAGES:
        page = ROOT / name
        for body in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            for entry in [line for line in body.splitlines() if line and not line.startswith(":")]:
                found = sorted(page.parent.glob(f"{entry}.md"))
                assert found, (name, entry)
                listed += [path for path in found if path != page]
    assert [path for path, times in Counter(listed).items() if times > 1] == []
    assert {ROOT / name for name in PAGES} - set(listed) <= {
        ROOT / "docs/index.md",
        *(ROOT / "docs/changelog.d").glob("*"),
    }
