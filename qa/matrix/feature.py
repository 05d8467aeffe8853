"""The delivery matrix: every feature of delivery in every surrounding, each cell with its expected outcome.

A feature is one entry (``Feature``): what is arranged before, what is done and seen after, and what has to be seen.
A column says on what broker, over what connection, and what happens in between.  The cells are made from both.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs
import trio
import trio.testing

from meshq.settings import AddressSettings
from qa.matrix.sending import Sending
from qa.matrix.stage import ENDINGS, House, Stage

#: A broker that keeps things, one that does not, one whose queues leave all but their first runs on the disk, one
#: all of whose messages are large: their bodies lie beside the journal and are streamed; and one that would keep
#: things, and is sent messages that are not durable.
STORAGES: Final = ("durable", "memory", "paged", "large", "non-durable")
#: How clients send in a storage, where they do not send as programs do.
SENDING: Final[Mapping[str, Sending]] = {"large": Sending(large=True), "non-durable": Sending(durable=False)}
TRANSPORTS: Final = ("inproc", "tcp")
#: What happens between ``arrange`` and ``act``.
TIMES: Final = ("before", *ENDINGS)
#: The pairs of nodes that take the place of a broker: clients reach them over a network in memory, and go on at
#: whichever of the two nodes serves.
PAIRS: Final = ("replicated", "shared store")
#: What happens in a pair between ``arrange`` and ``act``, by storage: the primary crashes and the backup takes over;
#: the primary comes back, and the backup gives it what was arranged there; or both, one after the other.
TURNS: Final = (
    *(("durable", time) for time in ("before", "failover", "failback")),
    *((storage, "failover and failback") for storage in ("paged", "large", "non-durable")),
)
#: What the outcome of a cell is called.
FATES: Final[Mapping[str, str]] = {
    "works": "nothing happens in between, and the feature does what it promises",
    "kept": "what was arranged is there after the broker has come back, or at the node that serves, and the feature "
    "does what it promises",
    "left": "the messages that were arranged are gone, as they were not durable; what else was arranged is there "
    "afterwards, and the feature does what it promises",
    "renewed": "what lasts no longer than its consumer has been made anew at the node to which the clients have gone "
    "on, without the messages that were there, and does what it promises",
    "gone": "nothing of what was arranged is left, as it has to be",
}
#: A cell that takes so long, in its own time, hangs.
CELL_S_MAX: Final = 600.0
#: How long nothing may happen, in seconds, before time jumps: bytes on their way through a socket are no task of ours.
IDLE_S: Final[Mapping[str, float]] = {"inproc": 0.0, "tcp": 0.002}


@attrs.frozen
class Column:
    """A surrounding."""

    storage: str
    transport: str
    time: str

    def __str__(self) -> str:
        return f"{self.storage}, {self.transport}, {self.time}"

    @property
    def pair(self) -> bool:
        """Whether it is a pair of nodes."""
        return self.transport in PAIRS

    @property
    def sending(self) -> Sending:
        """How clients send there."""
        return SENDING.get(self.storage, Sending())

    def settings_of(self, feature: Feature) -> dict[str, AddressSettings]:
        """Return the settings with which a feature is played there."""
        # Every queue leaves all but the first of its runs on the disk.
        paged = {"#": AddressSettings(max_size_bytes=1)} if self.storage == "paged" else {}
        return {**paged, **feature.settings}


COLUMNS: Final = (
    *(Column(storage, transport, time) for storage in STORAGES for transport in TRANSPORTS for time in TIMES),
    *(Column(storage, pair, time) for pair in PAIRS for storage, time in TURNS),
)


class Feature(ABC):
    """A feature of delivery; the docstring of each feature describes its promise.

    ``uses``: other features without which its cells fail.  ``works``, ``kept``, ``left`` and ``gone``: what ``act`` has
    to return for each fate, with tuples for lists; ``kept`` is as ``works`` unless it says something else, and without
    messages nothing is ``left`` unless it says what.  ``across``: what it has to return at the other node of a pair,
    to which the clients have gone on, where that is none of these.  ``less``: in which storages its cells can't show
    all that the storage stands for, and why.
    """

    name: ClassVar[str]
    uses: ClassVar[tuple[str, ...]] = ()
    #: Nothing of it is to survive its broker, or its session.
    non_durable: ClassVar[bool] = False
    less: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[Mapping[str, AddressSettings]] = {}
    works: ClassVar[Any]
    kept: ClassVar[Any] = None
    left: ClassVar[Any] = None
    across: ClassVar[Any] = None
    gone: ClassVar[Any]

    @abstractmethod
    async def arrange(self, stage: Stage) -> None:
        """Prepare the feature, in the first life of the broker."""

    @abstractmethod
    async def act(self, stage: Stage) -> Any:
        """Use the feature, perhaps in another life of the broker; return the observation."""


def promise_of(feature: Feature) -> str:
    """The promise of a feature, in a sentence."""
    return inspect.getdoc(type(feature)) or ""


@attrs.frozen
class Cell:
    """A feature in one surrounding."""

    feature: Feature
    column: Column

    def __str__(self) -> str:
        return f"{self.feature.name}: {self.column}"

    @property
    def fate(self) -> str:
        """Which of ``FATES`` the feature has in this surrounding."""
        feature, column = self.feature, self.column
        if column.time == "before":
            return "works"
        if column.pair and feature.across is not None:
            return "renewed"
        if column.storage == "memory" or feature.non_durable:
            return "gone"
        if column.storage == "non-durable":
            return "gone" if feature.left is None else "left"
        return "kept"

    @property
    def expected(self) -> Any:
        """The value that ``act`` has to return in this surrounding."""
        feature = self.feature
        kept = feature.works if feature.kept is None else feature.kept
        outcomes = {"works": feature.works, "kept": kept, "left": feature.left, "renewed": feature.across}
        return {**outcomes, "gone": feature.gone}[self.fate]

    @property
    def decisive(self) -> bool:
        """Whether it fails without the feature: where nothing is left, nothing is to be seen of it."""
        return self.fate != "gone"

    def play(self) -> str | None:
        """Play the cell, which is not in a pair; return the problem, or None."""
        clock = trio.testing.MockClock(autojump_threshold=IDLE_S[self.column.transport])
        expected = self.expected
        try:
            seen = frozen(trio.run(self._play, clock=clock))
        except trio.TooSlowError:
            return f"took longer than {CELL_S_MAX:g} s of its own time"
        except BaseExceptionGroup as group:
            error = leaf(group)
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"raised {error!r}"
        return None if seen == expected else f"saw {seen!r}, not {expected!r}"

    async def _play(self) -> Any:
        feature, column = self.feature, self.column
        house = House(
            column.settings_of(feature),
            durable=column.storage != "memory",
            tcp=column.transport == "tcp",
            sending=column.sending,
        )
        with trio.fail_after(CELL_S_MAX):
            if column.time == "before":
                async with house.life() as stage:
                    await feature.arrange(stage)
                    return await feature.act(stage)
            async with house.life(column.time) as stage:
                await feature.arrange(stage)
            async with house.life() as stage:
                return await feature.act(stage)


def leaf(error: BaseException) -> BaseException:
    """Return the first error of a group, or an error that is none."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def frozen(seen: Any) -> Any:
    """Return an observation with tuples in place of lists, as entries expect it."""
    return tuple(map(frozen, seen)) if isinstance(seen, list | tuple) else seen
