"""The tree keeps its own rules; each failure names the file, the line and what is wrong there."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

import meshq
from meshq import testing
from tests.tidy import bans, imports, layers, shapes, texts
from tests.tidy.sources import ROOT, Problem, python_files, report, tracked

PRODUCT = python_files("src")
#: Not in the wheel, and typed and documented like the product.
QA = python_files("qa")
USERS = python_files("qa", "tests", "benchmarks", "examples", "tools", "docs")
EVERYTHING = python_files("src", "qa", "tests", "benchmarks", "examples", "tools", "docs")
MODULES = frozenset(source.module for source in PRODUCT)
QA_MODULES = frozenset(source.module for source in QA)
# One process reads all these trees, and once is enough.
pytestmark = [pytest.mark.rules, pytest.mark.xdist_group("tidy")]


def public_face() -> frozenset[str]:
    """Whose coroutines say when they are checkpoints: what users call, and what they may implement."""
    return frozenset(meshq._HOME) | {
        node.name
        for source in PRODUCT
        if source.unit == "abc"
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
    }


def problems_of(*rules: object, sources: object = PRODUCT) -> str:
    """What these rules say about each of the files."""
    return report([problem for source in sources for rule in rules for problem in rule(source)])  # type: ignore


def test_imports_go_down_only() -> None:
    problems = [problem for source in PRODUCT for problem in imports.layer_problems(source, MODULES)]
    assert not problems, report(problems)


@pytest.mark.parametrize("package", layers.ROOMS)
def test_the_rooms_of_a_package_are_ordered(package: str) -> None:
    sources = [source for source in (*PRODUCT, *QA) if source.unit == package]
    modules = MODULES | QA_MODULES
    problems = [problem for source in sources for problem in imports.room_problems(source, modules)]
    assert not problems, report(problems)
    rooms = layers.ROOMS[package]
    assert {imports.room_of(source.module, modules)[1] for source in sources} == set(rooms)
    assert imports.cycles(rooms) == []


def test_what_the_testing_kit_publishes_is_imported_from_there() -> None:
    published = frozenset(testing.__all__)
    problems = [
        problem for source in USERS for problem in imports.published_problems(source, "meshq.testing", published)
    ]
    assert not problems, report(problems)


def test_documents_and_examples_import_no_private_module() -> None:
    names = [name for name in tracked() if name.startswith(("docs/", "examples/")) or name == "README.md"]
    problems = [
        problem
        for name in names
        if name.endswith((".md", ".py"))
        for problem in texts.private_import_problems(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    assert not problems, report(problems)


def test_deciders_know_nothing_of_the_world() -> None:
    worldly = imports.worldly_modules(PRODUCT, MODULES)
    problems = [problem for source in PRODUCT for problem in imports.purity_problems(source, MODULES, worldly)]
    assert not problems, report(problems)


def test_only_env_reaches_outside() -> None:
    problems = problems_of(imports.outside_world_problems, bans.call_problems)
    assert not problems, problems


def test_each_part_depends_on_no_more_than_it_says() -> None:
    problems = problems_of(imports.dependency_problems)
    assert not problems, problems


def test_private_names_of_trio_stand_in_one_file() -> None:
    problems = problems_of(imports.private_trio_problems, sources=(*PRODUCT, *QA))
    assert not problems, problems


def test_no_failure_goes_unseen_and_no_order_differs_from_run_to_run() -> None:
    problems = problems_of(
        bans.finaliser_problems,
        bans.broad_except_problems,
        bans.async_generator_problems,
        bans.set_order_problems,
        bans.state_problems,
        bans.cause_problems,
        sources=(*PRODUCT, *QA),
    )
    assert not problems, problems


def test_packages_only_list_what_they_offer() -> None:
    problems = problems_of(bans.package_problems)
    assert not problems, problems


def test_files_and_functions_are_short() -> None:
    problems = problems_of(shapes.file_problems, shapes.function_problems, sources=EVERYTHING)
    assert not problems, problems


def test_half_of_the_files_are_really_short() -> None:
    problems = [*shapes.median_problems(PRODUCT), *shapes.median_problems(QA)]
    assert not problems, report(problems)


def test_no_folder_of_the_testing_kit_or_of_qa_has_too_many_files() -> None:
    problems = list(shapes.folder_problems([*QA, *(source for source in PRODUCT if source.unit == "testing")]))
    assert not problems, report(problems)


def test_constructors_take_a_handful_by_position() -> None:
    problems = problems_of(shapes.constructor_problems, sources=(*PRODUCT, *QA))
    assert not problems, problems


def test_everything_public_says_what_it_is() -> None:
    documented = shapes.Documented((*PRODUCT, *QA))
    problems = [problem for source in (*PRODUCT, *QA) for problem in shapes.docstring_problems(source, documented)]
    assert not problems, report(problems)


def test_public_coroutines_say_what_a_cancelled_call_has_done() -> None:
    documented, face = shapes.Documented(PRODUCT), public_face()
    problems = [problem for source in PRODUCT for problem in shapes.coroutine_problems(source, documented, face)]
    assert not problems, report(problems)


def test_no_file_speaks_of_a_machine_or_of_work_left() -> None:
    problems: list[Problem] = []
    for name in tracked():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # test data in bytes
        problems += texts.text_problems(name, text)
    assert not problems, report(problems)


def test_every_fragment_of_the_changelog_is_of_a_known_kind() -> None:
    names = [name.split("/")[-1] for name in tracked() if name.startswith("docs/changelog.d/")]
    fragments = [name for name in names if name != "README.md"]
    assert [name for name in fragments if not re.fullmatch(r"\+[\w-]+\.(added|changed|fixed|removed)\.md", name)] == []


def test_the_wheel_has_the_package_alone_and_the_source_archive_everything() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"] == {"packages": ["src/meshq", "src/pyspark_meshq"]}
    folders = {name.split("/")[0] for name in tracked() if name.endswith(".py") and "/" in name}
    assert folders <= set(targets["sdist"]["include"])


def test_the_table_of_layers_itself_goes_down() -> None:
    applications = {"cli", "config", "demo", "console", "__main__", "testing", "blocking", "aio", "__init__"}
    table = {
        unit: allowed - layers.VOCABULARY
        for unit, allowed in layers.MAY_IMPORT.items()
        if unit not in applications | layers.VOCABULARY
    }
    assert imports.cycles(table) == []


def test_broker_and_client_do_not_know_each_other_and_nobody_knows_testing() -> None:
    assert "client" not in layers.MAY_IMPORT["broker"]
    assert "broker" not in layers.MAY_IMPORT["client"]
    # The command prints a first test; it loads nothing else of the kit.
    assert [unit for unit, allowed in layers.MAY_IMPORT.items() if "testing" in allowed] == ["__main__"]
    assert [unit for unit in ("bridge", "cluster", "ha") if "broker" in layers.MAY_IMPORT[unit]] == []


@pytest.mark.parametrize("folder", ["src", "qa", "tests"])
def test_the_rules_see_the_files(folder: str) -> None:
    assert len(python_files(folder)) >= 5
