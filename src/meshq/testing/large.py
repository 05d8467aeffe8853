"""``python -m meshq.testing.large``: send one message that is larger than memory may be, and receive it."""

from __future__ import annotations

import sys

from meshq.testing._large_command import main

if __name__ == "__main__":
    sys.exit(main())
