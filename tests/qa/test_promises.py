"""Each row of the table of promises is played, and the page says what the table says."""

from __future__ import annotations

import pytest
from tools.draw_promises import PAGE, page

from qa.ha.pair import Policies, quorum, voted
from qa.promises import failures
from qa.promises.scenario import observe
from qa.promises.table import NAMES, SECTIONS, PromiseRow, Section

ROWS = [
    pytest.param(section, row, id=f"{section.name}: {row.failure.__name__}")
    for section in SECTIONS
    for row in section.rows
]


@pytest.mark.slow
@pytest.mark.parametrize(("section", "row"), ROWS)
def test_what_the_table_promises_holds(section: Section, row: PromiseRow) -> None:
    seen = observe(section.policies, row.failure, row.repair)
    assert seen.serving == row.serving
    assert (seen.lost == 0) is row.kept, seen
    assert seen.doubled == 0 and seen.served
    if row.within_s is None:
        assert not seen.serving
    else:
        assert seen.without_service_s <= row.within_s


@pytest.mark.slow
def test_an_old_copy_that_is_started_alone_loses_what_the_other_node_has_confirmed() -> None:
    """So the row says in which order nodes are started."""
    (section,) = [one for one in SECTIONS if one.name == "replication, a pair alone"]
    assert observe(section.policies, failures.both_lost, ("a",)).lost > 0


@pytest.mark.slow
@pytest.mark.parametrize("policies", [quorum, voted])
def test_with_a_quorum_an_old_copy_that_is_started_alone_waits(policies: Policies) -> None:
    seen = observe(policies, failures.both_lost, ("a",))
    assert not seen.served and not seen.serving


def test_each_policy_with_two_nodes_says_something_about_each_failure() -> None:
    for section in SECTIONS:
        told = [row.failure for row in section.rows]
        assert len(told) == len(set(told)) and set(told) <= set(NAMES)
        if section.name != "one node":
            theirs = set() if section.policies in (quorum, voted) else {failures.witnesses_lost}
            assert set(told) == set(NAMES) - theirs, section.name


def test_the_page_is_drawn_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
