"""``python -m meshq.testing.backlog``: fill a queue with more than memory may hold, kill its broker, and drain it."""

from __future__ import annotations

import sys

from meshq.testing._backlog_command import main

if __name__ == "__main__":
    sys.exit(main())
