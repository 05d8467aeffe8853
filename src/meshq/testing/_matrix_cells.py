"""All cells of the delivery matrix."""

from __future__ import annotations

from typing import Final

from meshq.testing._matrix import COLUMNS, Cell, Feature
from meshq.testing._matrix_consumers import CONSUMERS
from meshq.testing._matrix_messages import MESSAGES
from meshq.testing._matrix_queues import QUEUES
from meshq.testing._matrix_transactions import TRANSACTIONS

#: Whoever adds a feature adds it there, and how it is switched off in ``_matrix_switches``.
FEATURES: Final[tuple[Feature, ...]] = (*MESSAGES, *QUEUES, *CONSUMERS, *TRANSACTIONS)
CELLS: Final = tuple(Cell(feature, column) for feature in FEATURES for column in COLUMNS)
