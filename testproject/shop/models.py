"""The business data whose changes the outbox announces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

if TYPE_CHECKING:
    from typing import ClassVar


class Order(models.Model):
    """One order of the demonstration shop; `number` is what customers quote."""

    objects: ClassVar[models.Manager[Order]]

    number = models.CharField(max_length=40, unique=True)
    total = models.DecimalField(max_digits=12, decimal_places=2)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.number
