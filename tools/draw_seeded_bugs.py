"""Draw the table of seeded bugs from their list and the last result: ``python -m tools.draw_seeded_bugs``.

``python -m qa.seeded --no-mesh --result seeded`` makes the result, with ``--mesh --result seeded-mesh``
that of the mesh, and with ``--roles --result seeded-roles`` that of high availability; a test compares the page with
all of them.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qa.seeded.broker_bugs import BUGS
from qa.seeded.bug import Bug
from qa.seeded.changed_copy import diff_of
from qa.seeded.mesh_bugs import ALL_BUGS, MESH_BUGS
from qa.seeded.role_bugs import ROLE_BUGS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "seeded-bugs.md"
RESULTS = ROOT / "docs" / "results"
KNOWN = ROOT / "tests" / "data" / "known_seeds.json"
#: The tests that plant mistakes of high availability, and the simulation that has to find them.
PLANTED = {
    "tests/seeds/test_mistakes_in_a_pair.py": "ha",
    "tests/seeds/test_mistakes_in_replication.py": "pair",
    "tests/seeds/test_mistakes_in_votes.py": "voted",
    "tests/seeds/test_mistakes_with_a_provider.py": "provided",
    "tests/seeds/test_seeds_of_colocated_nodes.py": "colocated",
}

#: A sentence to a line.
INTRODUCTION = (
    "# Seeded bugs",
    "",
    "A simulation that finds nothing proves nothing by itself.",
    "So bugs are seeded in copies of the product, a line or two each, and the simulation has to find every one:",
    "the same simulation that the product is tested with, within {seeds_max} seeds,",
    "and with the checker that is in charge of what the bug breaks.",
    "A bug that only something else notices counts as missed.",
    "",
    "`python -m qa.seeded` does it again; `--bug NAME` for one of them.",
    "`--no-mesh --result seeded --resume` hunts all of the first table, writes each result as soon as it is there,",
    "and goes on where it was broken off, as long as the commit is the same;",
    "`--mesh --result seeded-mesh` does so with those of the second table,",
    "and `--roles --result seeded-roles` with those of the third.",
    "Each row says at which commit its bug was hunted; the product may have changed since then.",
    "Those with a star are looked for in every run of the tests,",
    "some of them in a simulation in which they are met within a few seeds (`--storage`).",
    "",
    "This page is drawn by `python -m tools.draw_seeded_bugs` from the list in `qa/seeded/broker_bugs.py`",
    "and from `docs/results/seeded.json` ({date}, commit {commit}).",
    "The second table is that of the simulated mesh (`--mesh`),",
    "from the list in `qa/seeded/mesh_bugs.py`",
    "and from `docs/results/seeded-mesh.json` ({mesh[date]}, commit {mesh[commit]}).",
    "The third is about high availability: shared stores, replication, votes, a quorum and colocated backups,",
    "from the list in `qa/seeded/role_bugs.py` and from `docs/results/seeded-roles.json` ({roles[date]}),",
    "each with a seed by which the simulation finds it: a hunt may begin there (`--first`).",
    "The fourth has those that tests plant, since they take more than a line, each with the seed that found it last;",
    "`tests/qa/test_quorum_mistakes.py` plants others in the deciders of a quorum.",
    "A test fails when it is stale.",
    "",
)


def row(bug: Bug, result: dict[str, Any]) -> str:
    """A bug's line of the table."""
    star = " *" if bug.required else ""
    found = ", ".join(checker for checker in result["caught_by"] if checker in bug.checkers)
    others = ", ".join(checker for checker in result["caught_by"] if checker not in bug.checkers)
    seeds = str(result["seeds"]) if result["caught"] else "not found"
    return (
        f"| {bug.name}{star} | `{bug.function}` | {seeds} | {found} | {others} | {result.get('commit', 'not known')} |"
    )


def change(bug: Bug) -> str:
    """What a bug changes, as a diff."""
    return f"### {bug.name.capitalize()}\n\n```diff\n{diff_of(bug)}\n```"


def read(name: str) -> dict[str, Any]:
    """A file of results."""
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def found(name: str) -> dict[str, dict[str, Any]]:
    """What a file of results says of each bug."""
    bugs: dict[str, dict[str, Any]] = read(name)["bugs"]
    return bugs


def table(bugs: Sequence[Bug], results: dict[str, dict[str, Any]]) -> str:
    """The lines of some bugs."""
    lines = [
        "| seeded bug | function | seeds needed | found by | and by | hunted at |",
        "| --- | --- | --- | --- | --- | --- |",
        *[row(bug, results[bug.name]) for bug in bugs],
    ]
    return "\n".join(lines)


def role_row(bug: Bug, result: dict[str, Any]) -> str:
    """A line of the table of high availability."""
    found = ", ".join(checker for checker in result["caught_by"] if checker in bug.checkers)
    return f"| {bug.name} | `{bug.function}` | `--{bug.stage}` | {result['seed']} | {found} | {result['commit']} |"


def role_table(results: dict[str, dict[str, Any]]) -> str:
    """The lines of the bugs of high availability."""
    lines = [
        "| seeded bug | function | simulation | seed | found by | hunted at |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *[role_row(bug, results[bug.name]) for bug in ROLE_BUGS]])


def planted() -> Iterator[str]:
    """The lines of the mistakes that tests plant."""
    known: dict[str, int] = json.loads(KNOWN.read_text(encoding="utf-8"))["caught"]
    for file, stage in PLANTED.items():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and [one.arg for one in node.args.args] == ["patch"]:
                what = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
                seed = next(
                    (seed for test, seed in known.items() if test == f"{file}::{_test_of(test)}[{node.name}]"), ""
                )
                yield f"| {node.name.replace('_', ' ')} | {what} | `--{stage}` | {seed} |"


def _test_of(test: str) -> str:
    return test.partition("::")[2].partition("[")[0]


def planted_table() -> str:
    """The table of the mistakes that tests plant."""
    lines = ["| planted mistake | what it is | simulation | seed |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *planted()])


def page() -> str:
    """The whole page."""
    result, mesh, roles = read("seeded"), read("seeded-mesh"), read("seeded-roles")
    introduction = "\n".join(INTRODUCTION).format(**result, mesh=mesh, roles=roles)
    one, several = table(BUGS, result["bugs"]), table(MESH_BUGS, mesh["bugs"])
    several += f"\n\n## High availability\n\n{role_table(roles['bugs'])}\n\n{planted_table()}"
    changes = "\n\n".join(change(bug) for bug in ALL_BUGS)
    return f"{introduction}\n{one}\n\n## On the mesh\n\n{several}\n\n## The changes\n\n{changes}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
