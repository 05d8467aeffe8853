"""How the documentation is built: ``sphinx-build -W -b html docs docs/_build``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

project = "meshq"
author = "The meshq developers"
copyright = author
release = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)[0]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
# Fragments are for towncrier, and the pages of the repository's root for whoever reads the code.
exclude_patterns = ["_build", "changelog.d"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# Links that leave docs/ go to files of the repository, which the built pages don't carry.
suppress_warnings = ["myst.xref_missing"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "alabaster"
html_theme_options = {"description": "A durable message broker that is a Python library"}
html_show_sourcelink = False
