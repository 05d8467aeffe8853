"""The pages about single faults: each has a test that passes as it is printed, and each kind of fault has a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshq.testing import Cluster
from meshq.testing.kit._fault_plan import DISK_FAULTS
from meshq.testing.scenario._fault import KINDS
from tests.testing.kit.test_plugin import run

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
PAGES = sorted((HOW_TO / "faults").glob("*.md"))


@pytest.mark.examples
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_test_of_a_page_passes(pytester: pytest.Pytester, page: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    run(pytester, code, "-p", "no:asyncio").assert_outcomes(passed=1)


def test_every_kind_of_fault_has_a_page_and_a_call_that_is_there() -> None:
    lines = (HOW_TO / "test-one-fault.md").read_text(encoding="utf-8").splitlines()
    rows = [re.fullmatch(r"\| \[.*\]\(faults/([\w-]+)\.md\) \| (.*) \| (.*) \|", line) for line in lines]
    found = [row.groups() for row in rows if row is not None]
    assert sorted(name for name, _, _ in found) == [page.stem for page in PAGES]
    assert sorted(kind for _, _, kinds in found for kind in re.findall(r"`(\w+)`", kinds)) == sorted(KINDS)
    calls = [call for _, calls, _ in found for call in re.findall(r"`(?:await )?(\w+)\(", calls)]
    assert all(hasattr(Cluster, call) for call in calls)
    kinds = re.findall(r'disk\(n, "(\w+)"\)', "".join(calls for _, calls, _ in found))
    assert {*kinds, "ok"} == set(DISK_FAULTS)
