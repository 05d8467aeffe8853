"""Life cycles: the states of an object as a table, and the engine that moves an object through them.

A table says for each state which event leads to which state.  Whatever the table lacks is illegal, and raises an
error that names the object, its state and the event.  ``docs/design/life-cycles.md`` is drawn from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshq.errors import InvariantError

#: State -> event -> next state.
Transitions = Mapping[str, Mapping[str, str]]


class LifeCycle:
    """The state of one object, which only events change."""

    __slots__ = ("_name", "_transitions", "state")

    def __init__(self, name: str, transitions: Transitions, first: str = "new") -> None:
        self._name: Final = name
        self._transitions: Final = transitions
        #: The state now; only ``on`` assigns a state.
        self.state: str = first

    def on(self, event: str) -> str:
        """Take an event; return the next state.

        Raises:
            InvariantError: the event is illegal in this state; the state stays.
        """
        legal = self._transitions[self.state]
        if event not in legal:
            allowed = ", ".join(legal) or "none"
            raise InvariantError(
                f"{self._name}: the event {event!r} is illegal in state {self.state!r}; legal: {allowed}"
            )
        self.state = legal[event]
        return self.state

    @property
    def ended(self) -> bool:
        """Whether no event leads to another state."""
        return set(self._transitions[self.state].values()) <= {self.state}

    def __repr__(self) -> str:
        return f"<LifeCycle of {self._name}: {self.state}>"
