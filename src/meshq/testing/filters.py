"""``python -m meshq.testing.filters``: many consumers of one queue, each with a filter of its own."""

from __future__ import annotations

import sys

from meshq.testing._filters_command import main

if __name__ == "__main__":
    sys.exit(main())
