"""All cells of the delivery matrix."""

from __future__ import annotations

from typing import Final

from qa.matrix.consumers import CONSUMERS
from qa.matrix.cursors import CURSORS
from qa.matrix.feature import COLUMNS, Cell, Feature
from qa.matrix.messages import MESSAGES
from qa.matrix.queues import QUEUES
from qa.matrix.transactions import TRANSACTIONS

#: Whoever adds a feature adds its entry to one of these lists, and its ablation to ``ablations``.
FEATURES: Final[tuple[Feature, ...]] = (*MESSAGES, *QUEUES, *CONSUMERS, *TRANSACTIONS, *CURSORS)
CELLS: Final = tuple(Cell(feature, column) for feature in FEATURES for column in COLUMNS)
