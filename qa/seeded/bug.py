"""What is known of a bug that is planted to see whether the simulation finds it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Bug:
    """One planted bug."""

    name: str
    #: Below the package, with slashes.
    file: str
    old: str
    new: str
    checkers: tuple[str, ...]
    required: bool = False
    #: It is looked for on the mesh, not with a single broker.
    mesh: bool = False
