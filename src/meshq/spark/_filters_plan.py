"""The part of a filter of Spark's that the source sees to: the queues, nodes and sequences that are read at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import attrs

#: Columns whose values are the same in a whole partition, and their types.
_CONSTANT: Final[dict[str, type]] = {"topic": str, "node": str, "partition": int}
_SEQUENCE: Final = "offset"
_END: Final = 1 << 63


class Condition(NamedTuple):
    """A filter of Spark's, by the name of its class; ``column`` is empty where it is about more or less than one."""

    kind: str
    column: str
    value: Any


@attrs.frozen(kw_only=True)
class Pruning:
    """The part of the queues that is read.  ``only``: by constant column, the values that it may have."""

    only: dict[str, frozenset[Any]] = attrs.field(factory=dict)
    lo: int = 0
    hi: int = _END

    def reads(self, queue: str, ordinal: int, node: str) -> bool:
        """Whether anything of a partition may be wanted."""
        found = {"topic": queue, "partition": ordinal, "node": node}
        return all(found[name] in allowed for name, allowed in self.only.items())

    def part_of(self, lo: int, hi: int) -> tuple[int, int]:
        """The sequences that may be wanted of a range, half open."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        return (lo, max(lo, hi))


def pruned(conditions: Iterable[Condition]) -> tuple[Pruning, list[bool]]:
    """Return the pruning by conditions of which all must hold; and for each whether Spark need not look at it."""
    only: dict[str, frozenset[Any]] = {}
    lo, hi = 0, _END
    whole: list[bool] = []
    for one in conditions:
        values = _values(one)
        if one.column in _CONSTANT and values is not None:
            only[one.column] = only.get(one.column, values) & values
            whole.append(True)
        elif one.column == _SEQUENCE and values is not None:
            # Of several numbers the source keeps to the range, and Spark to the numbers.
            lo, hi = max(lo, min(values)), min(hi, max(values) + 1)
            whole.append(len(values) == 1)
        elif one.column == _SEQUENCE and type(one.value) is int and one.kind in _BOUNDS:
            first, end = _BOUNDS[one.kind]
            lo = lo if first is None else max(lo, one.value + first)
            hi = hi if end is None else min(hi, one.value + end)
            whole.append(True)
        else:
            whole.append(False)
    return Pruning(only=only, lo=lo, hi=hi), whole


#: What a comparison adds to its number, for the first sequence that is read, or the one behind the last.
_BOUNDS: Final[dict[str, tuple[int | None, int | None]]] = {
    "GreaterThan": (1, None),
    "GreaterThanOrEqual": (0, None),
    "LessThan": (None, 0),
    "LessThanOrEqual": (None, 1),
}


def _values(one: Condition) -> frozenset[Any] | None:
    """The values that a condition names; None: it does not, or they are of another type."""
    kind = _CONSTANT.get(one.column, int)
    if one.kind in ("EqualTo", "EqualNullSafe"):
        values: tuple[Any, ...] = (one.value,)
    elif one.kind == "In" and one.value:
        values = tuple(one.value)
    else:
        return None
    return frozenset(values) if all(type(value) is kind for value in values) else None
