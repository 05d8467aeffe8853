"""What is known of a bug that is planted to see whether the simulation finds it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Bug:
    """One planted bug."""

    name: str
    #: A package and the qualified name of a function in it, as in ``meshq.broker:Session.close``.
    function: str
    #: A part of the function's source, moved to the left margin.
    old: str
    new: str
    checkers: tuple[str, ...]
    required: bool = False
    #: It is looked for on the mesh, not with a single broker.
    mesh: bool = False
