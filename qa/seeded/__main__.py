"""``python -m qa.seeded``: count the seeds that the simulation needs to find each seeded bug."""

from __future__ import annotations

import sys

from qa.seeded.hunt import main

if __name__ == "__main__":
    sys.exit(main())
