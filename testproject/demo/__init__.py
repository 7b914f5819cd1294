"""The main job as a demonstration, with real processes: ``python -m testproject.demo``."""

from __future__ import annotations
