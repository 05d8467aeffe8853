"""Every feature of delivery on queues that are paged: all but the first of their runs are on the disk only."""

from __future__ import annotations

import pytest

from meshq.testing._matrix import TIMES, Cell, Column
from meshq.testing._matrix_cells import FEATURES

CELLS = [Cell(feature, Column("paged", "inproc", time)) for feature in FEATURES for time in TIMES]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_feature_works_on_paged_queues_as_on_others(cell: Cell) -> None:
    assert cell.play() is None
