"""The table of accepted writes: its numbers are taken inside the fenced transactions.

Of one resource only one transaction at a time is past the fence, so its numbers stand in the order
of the commits.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import connection, models

from tests.chaos.history import Write


class Entry(models.Model):
    """An accepted write. The table belongs to no app: each run makes it."""

    number = models.BigAutoField(primary_key=True)
    resource = models.CharField(max_length=100)
    token = models.BigIntegerField()
    worker = models.CharField(max_length=100)

    objects: ClassVar[models.Manager[Entry]] = models.Manager()

    class Meta:
        app_label = "chaos"
        indexes = [models.Index(fields=["resource", "number"], name="chaos_entry_last")]

    def __str__(self) -> str:
        return f"{self.number}: {self.resource} {self.token} by {self.worker}"


def create() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Entry)


def write(resource: str, token: int, worker: str) -> int:
    """Add an entry in the caller's transaction and return its number."""
    return Entry.objects.create(resource=resource, token=token, worker=worker).number


def last(resource: str) -> int:
    """The number of the last entry of the resource that is committed; 0 when there is none."""
    newest = Entry.objects.filter(resource=resource).order_by("-number").first()
    return newest.number if newest else 0


def writes() -> list[Write]:
    """All that was accepted."""
    rows = Entry.objects.values_list("number", "resource", "token", "worker")
    return [Write(*row) for row in rows]
