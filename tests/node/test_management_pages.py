"""The pages on what a broker tells and can be asked say what the code does."""

from __future__ import annotations

import pytest
from tools import draw_management

import meshq
from meshq import notifications
from meshq.notifications import KINDS, Notification


@pytest.mark.parametrize("page", sorted({page for page, _ in draw_management.TABLES.values()}))
def test_the_tables_are_those_of_the_code(page: str) -> None:
    text = (draw_management.GUIDES / page).read_text(encoding="utf-8")
    assert draw_management.redrawn(page, text) == text


@pytest.mark.parametrize("name", list(draw_management.TABLES))
def test_a_page_that_lacks_its_table_is_not_drawn(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        draw_management.redrawn(draw_management.TABLES[name][0], "")


def test_every_kind_of_notification_is_listed_and_public() -> None:
    made = [one for one in vars(notifications).values() if isinstance(one, type) and issubclass(one, Notification)]
    assert {one for one in made if not one.__name__.startswith("_")} - {Notification} == set(KINDS)
    assert len({kind.kind for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert getattr(meshq, kind.__name__) is kind
