"""``python -m qa.seeded``: plant bugs in a copy of the product, and count the seeds that find them."""

from __future__ import annotations

import sys

from qa.seeded.hunt import main

if __name__ == "__main__":
    sys.exit(main())
