"""Verbs of holds and topics."""

from __future__ import annotations

from typing import Any

from django.db import models


class HoldQuerySet(models.QuerySet[Any]):
    """Holds."""


class TopicStateQuerySet(models.QuerySet[Any]):
    """Topics."""
