"""What users with a password can make a broker do or keep: each attack, with the bound that holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks import costly_filter, costly_queue, wide_windows


@pytest.mark.processes
async def test_a_filter_that_costs_much_keeps_nobody_else_from_sending(tmp_path: Path) -> None:
    (await costly_filter.attack(tmp_path)).check()


@pytest.mark.processes
async def test_queues_whose_filters_cost_much_keep_nobody_else_from_sending(tmp_path: Path) -> None:
    (await costly_queue.attack(tmp_path)).check()


@pytest.mark.processes
async def test_windows_without_an_end_hold_half_of_memory_at_most(tmp_path: Path) -> None:
    (await wide_windows.attack(tmp_path)).check()
