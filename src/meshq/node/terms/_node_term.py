"""The term of a node, as its parts need it."""

from __future__ import annotations

import attrs

from meshq.abc import RoleBoard, TermGuard


@attrs.frozen
class NodeTerm:
    """The term of a node.

    ``guard``: the bounds of the term; None: there are none.  ``board``: has the role of the node.
    """

    guard: TermGuard | None = None
    board: RoleBoard = attrs.field(factory=RoleBoard)
