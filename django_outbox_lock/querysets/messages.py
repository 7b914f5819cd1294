"""Verbs."""

from __future__ import annotations

from typing import Any

from django.db import models


class MessageQuerySet(models.QuerySet[Any]):
    """Rows."""


# Beyond any clock (2^60 µs are 36,000 years); the rest tells the reason and the key or topic.
PARKED = 1 << 60
