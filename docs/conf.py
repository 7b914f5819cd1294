"""Sphinx: Markdown by MyST, furo's looks, and nothing that is fetched while building."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# autodoc imports models and admin classes.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
django.setup()

metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = metadata["name"]
author = "the django-outbox-lock contributors"
copyright = f"2026, {author}"
release = metadata["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
# Every check's hint links to its heading.
myst_heading_anchors = 4

exclude_patterns = ["_build"]
nitpicky = True
# Names of Python and of Django: without intersphinx, which would fetch, they have no target.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|contextlib|dataclasses|datetime|enum|re|threading|typing|uuid)\..*"),
    ("py:.*", r"(bool|bytes|callable|dict|float|frozenset|int|list|object|set|str|tuple|type)"),
    ("py:.*", r"(Any|Callable|Iterable|Iterator|Mapping|Sequence|Self|TypeVar|UUID)"),
    ("py:.*", r"django\..*"),
]
autodoc_typehints = "description"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = project
