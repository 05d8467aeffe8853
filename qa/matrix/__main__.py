"""``python -m qa.matrix``: play the delivery matrix, or switch its features off one by one."""

from __future__ import annotations

import sys

from qa.matrix.check import main

if __name__ == "__main__":
    sys.exit(main())
