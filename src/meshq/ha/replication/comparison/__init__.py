"""Two stores of a pair by replication, compared while traffic goes on."""

from meshq.ha.replication.comparison._comparer import Comparer
from meshq.ha.replication.comparison._comparison_plan import Compared

__all__ = ["Compared", "Comparer"]
