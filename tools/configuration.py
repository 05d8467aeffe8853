"""Draws docs/configuration.md: every key of a configuration file, from the settings themselves."""

from __future__ import annotations

from pathlib import Path

from meshq.config._reference import page

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
