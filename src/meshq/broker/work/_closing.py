"""Why a node accepts nothing new."""

from __future__ import annotations

from meshq.errors import NotActiveError


class Closing:
    """The end of a node's service: why nothing new is accepted."""

    __slots__ = ("why",)

    def __init__(self) -> None:
        #: None while the node is active.
        self.why: str | None = None

    def begin(self, why: str) -> None:
        """Accept nothing new from now on."""
        self.why = why

    def check(self) -> None:
        """Check that the node is active.

        Raises:
            NotActiveError: the node accepts nothing new.
        """
        if self.why is not None:
            raise NotActiveError(self.why)
