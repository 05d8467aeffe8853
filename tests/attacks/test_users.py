"""What one user can do to another one's work: each attack, with the bound that holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks import producer_ids, queue_names


@pytest.mark.processes
async def test_nobody_takes_over_another_users_producer(tmp_path: Path) -> None:
    (await producer_ids.attack(tmp_path, producer_ids.FEW_CLAIMS)).check()


@pytest.mark.processes
async def test_nobody_takes_the_names_of_other_peoples_queues(tmp_path: Path) -> None:
    (await queue_names.attack(tmp_path)).check()
