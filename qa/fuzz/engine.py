"""The process in which atheris plays one target: ``python -m qa.fuzz.engine TARGET OPTION...``.

``python -m qa.fuzz`` starts it.  The options are those of libFuzzer, which ends the process when the time is over, or
with the first input that breaks the target.
"""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    """Import the product with its branches counted, and play."""
    import atheris

    # What is imported only when it is needed is needed by the first inputs.
    with atheris.instrument_imports(include=["meshq"], enable_loader_override=False):
        from qa.fuzz.targets import TARGETS

        target = TARGETS[sys.argv[1]]
        for data in target.seeds():
            target.accepts(data)

    def play(data: Any) -> None:
        target.accepts(bytes(data))

    atheris.Setup([sys.argv[0], *sys.argv[2:]], play)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
