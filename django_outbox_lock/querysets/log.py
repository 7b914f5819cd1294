"""Verbs."""

from __future__ import annotations

from typing import Any

from django.db import models


class ProcessingLogQuerySet(models.QuerySet[Any]):
    """Rows."""
