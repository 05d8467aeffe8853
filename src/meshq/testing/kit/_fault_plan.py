"""The nodes and links of a fault, and the errors for wrong names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Final, Literal, get_args

from meshq.errors import SettingsError, UsageError, short

#: The kinds of a fault of a disk; ``ok`` ends those that have not happened yet.
DiskFault = Literal["eio", "eio_once", "enospc", "torn", "flip", "ok"]
DISK_FAULTS: Final[tuple[str, ...]] = get_args(DiskFault)
Direction = tuple[str, str]
#: The host of the test itself: of its clients, and of brokers that it starts by itself.
TEST_HOST: Final = "test"


def check_known(node: object, names: Sequence[str]) -> None:
    """Raise ``UsageError`` unless ``node`` is one of these names."""
    if node not in names:
        raise UsageError(f"no node is named {short(node)}; the nodes: {', '.join(names)}")


def check_state(node: str, state: str, allowed: Sequence[str], states: dict[str, str]) -> None:
    """Raise ``UsageError`` unless the state of ``node`` is allowed; the error names the state of every node."""
    if state not in allowed:
        told = ", ".join(f"{name} is {state}" for name, state in states.items())
        raise UsageError(f"{node} is {state}, and not {' or '.join(allowed)}; {told}")


def check_disk_fault(kind: object) -> None:
    """Raise ``SettingsError`` unless a disk has this kind of fault."""
    if kind not in DISK_FAULTS:
        raise SettingsError("kind", kind, ", ".join(DISK_FAULTS))


def check_probability(probability: object) -> None:
    """Raise ``SettingsError`` unless segments may be lost at this probability."""
    if type(probability) not in (int, float) or not 0 <= probability < 1:  # type: ignore[operator]
        raise SettingsError("probability", probability, "a number from 0 to less than 1; cut() lets nothing through")


def check_seconds(name: str, seconds: object) -> None:
    """Raise ``SettingsError`` unless these are seconds."""
    if type(seconds) not in (int, float) or not 0 <= seconds < 1e9:  # type: ignore[operator]
        raise SettingsError(name, seconds, "seconds from 0")


def check_shift(seconds: object) -> None:
    """Raise ``SettingsError`` unless the time of day may jump by these seconds."""
    if type(seconds) not in (int, float) or not -1e9 <= seconds <= 1e9:  # type: ignore[operator]
        raise SettingsError("seconds", seconds, "seconds from -1e9 to 1e9")


def check_flag(name: str, value: object) -> None:
    """Raise ``SettingsError`` unless this is True or False."""
    if type(value) is not bool:
        raise SettingsError(name, value, "True or False")


def check_function(function: object) -> None:
    """Raise ``UsageError`` unless this can be called for a task."""
    if inspect.iscoroutine(function):
        function.close()
        raise UsageError("spawn(n, fn, *args) calls an async function itself: hand over fn, and not fn(...)")
    if not callable(function) or inspect.isclass(function):
        raise UsageError(f"spawn(n, fn, *args) needs an async function, and not {short(function)}")


def check_different(a: str, b: str) -> None:
    """Raise ``UsageError`` unless there is a link between two places: they are different ones."""
    if a == b:
        raise UsageError(f"a link is between two different places, not {short(a)} and {short(b)}")


def groups_of(groups: Sequence[Iterable[str]], names: Sequence[str], places: Sequence[str]) -> list[list[str]]:
    """Return the sides of a partition; one group alone stands against all other nodes.

    ``places``: what a group may name; the test's own host beside the nodes.

    Raises:
        UsageError: no group is given, a name is unknown, or stands in two groups.
    """
    if any(isinstance(group, str) for group in groups):
        raise UsageError('a group of a partition is a list of names: partition(["n0"], ["n1", "n2"])')
    sides = [list(group) for group in groups]
    named = [name for side in sides for name in side]
    for name in named:
        check_known(name, places)
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise UsageError(f"a node stands on one side of a partition; named twice: {', '.join(twice)}")
    if not named:
        raise UsageError(f"a partition needs a group of nodes; the nodes: {', '.join(names)}")
    if len(sides) == 1:
        sides.append([name for name in names if name not in named])
    return sides


def pairs_between(sides: Sequence[Sequence[str]]) -> list[Direction]:
    """Return the directions between names of different sides."""
    return [
        (source, target) for one in sides for other in sides if one is not other for source in one for target in other
    ]
