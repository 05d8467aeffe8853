"""``python -m meshq.testing.simulate``: run seeds of the simulation.

To be run, not imported: in a program ``meshq.testing.simulate`` is the function of that name.
"""

from __future__ import annotations

import sys

from meshq.testing._simulate_command import main

if __name__ == "__main__":
    sys.exit(main())
