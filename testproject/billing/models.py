"""What the consumer keeps: every delivery it saw, and the effect of each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

if TYPE_CHECKING:
    from typing import ClassVar


class Delivery(models.Model):
    """One arrival of a message; the second arrival of the same message is a second row."""

    objects: ClassVar[models.Manager[Delivery]]

    message_id = models.CharField(max_length=36, db_index=True)

    def __str__(self) -> str:
        return self.message_id


class Invoice(models.Model):
    """The effect of one message. Nothing here keeps it unique: that is the processing log's job."""

    objects: ClassVar[models.Manager[Invoice]]

    message_id = models.CharField(max_length=36, db_index=True)
    order = models.CharField(max_length=40)
    total = models.DecimalField(max_digits=12, decimal_places=2)

    def __str__(self) -> str:
        return self.order
