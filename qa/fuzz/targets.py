"""All targets of fuzzing, by their names."""

from __future__ import annotations

from typing import Final

from qa.fuzz.journals import JOURNALS
from qa.fuzz.target import Target
from qa.fuzz.texts import FILTERS, SETTINGS, URLS
from qa.fuzz.wires import DATAGRAMS, FRAMES

TARGETS: Final[dict[str, Target]] = {
    target.name: target for target in (FRAMES, DATAGRAMS, JOURNALS, FILTERS, URLS, SETTINGS)
}
