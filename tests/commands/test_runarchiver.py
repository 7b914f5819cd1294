"""``manage.py runarchiver``, mostly as a process of its own."""

from __future__ import annotations

import io
import json
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_outbox_lock.backends.archives.base import BaseArchive
from django_outbox_lock.models import ArchivedMessage, OutboxMessage
from tests.factories import OutboxMessageFactory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_django import Settings

    from django_outbox_lock.backends.archives.base import ArchiveRecord
    from django_outbox_lock.outcomes import Outcome
    from tests.conftest import RunManage, StartManage, WaitUntil

pytestmark = pytest.mark.django_db(transaction=True)


class Broken(BaseArchive):
    """An archive whose disk is full."""

    def store(self, records: Sequence[ArchiveRecord]) -> Sequence[Outcome]:
        raise OSError("disk full")


def settings_with(**archiver: Any) -> dict[str, str]:
    """A short lease: a killed holder's must pass before somebody else archives."""
    outbox = {
        "LOCK": {"OPTIONS": {"lease": 1}},
        "ARCHIVER": {"minimum_age": 0, "interval": 0.2, **archiver},
    }
    return {"OUTBOX_LOCK": json.dumps({"default": outbox})}


def dispatched(count: int) -> None:
    rows = OutboxMessageFactory.build_batch(count, dispatched=True)
    OutboxMessage.objects.bulk_create(rows, batch_size=500)


def everywhere() -> list[str]:
    """The ids of all messages, wherever they are; one that is in both places is there twice."""
    rows = [*OutboxMessage.objects.all(), *ArchivedMessage.objects.all()]
    return sorted(str(row.message_id) for row in rows)


def has_archived_more_than(count: int) -> bool:
    return ArchivedMessage.objects.count() > count


def test_once_archives_everything_and_exits(run_manage: RunManage) -> None:
    dispatched(25)
    done = run_manage("runarchiver", "--once", "--batch-size", "10", env=settings_with())
    assert "25 archived" in done.stdout
    assert ArchivedMessage.objects.count() == 25
    assert not OutboxMessage.objects.exists()


def test_dry_run_tells_and_changes_nothing(run_manage: RunManage) -> None:
    dispatched(3)
    done = run_manage("runarchiver", "--dry-run", env=settings_with())
    assert "Would be done now: 3 archived" in done.stdout
    assert OutboxMessage.objects.count() == 3


def test_case_125_the_first_signal_stops_between_two_batches(
    start_manage: StartManage, wait_until: WaitUntil
) -> None:
    """Case 125: batch size and pause are honoured, and a pause does not delay the end."""
    dispatched(30)
    process = start_manage(
        "runarchiver", "--batch-size", "10", env=settings_with(pause=60, interval=60)
    )
    wait_until(lambda: ArchivedMessage.objects.count() == 10, timeout=30, what="a first batch")
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    assert ArchivedMessage.objects.count() == 10
    assert OutboxMessage.objects.count() == 20


def test_case_121_a_kill_in_mid_batch_leaves_every_message_in_one_place(
    start_manage: StartManage, wait_until: WaitUntil
) -> None:
    """Case 121: no state to be repaired by hand, wherever the process was killed."""
    dispatched(2000)
    before = everywhere()
    options = settings_with(batch_size=50)
    for _ in range(3):
        seen = ArchivedMessage.objects.count()
        process = start_manage("runarchiver", env=options)
        wait_until(partial(has_archived_more_than, seen), timeout=30)
        process.kill()
        process.wait(10)
        assert everywhere() == before
    process = start_manage("runarchiver", env=options)
    wait_until(lambda: not OutboxMessage.objects.exists(), timeout=30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    assert everywhere() == before


def test_case_129_an_archive_that_raises_ends_a_single_run_with_one_sentence(
    settings: Settings,
) -> None:
    """Case 129: non-zero exit and the reason; nothing is deleted."""
    settings.OUTBOX_LOCK = {
        "default": {
            "ARCHIVER": {"minimum_age": 0},
            "ARCHIVE": {"BACKEND": "tests.commands.test_runarchiver.Broken"},
        }
    }
    dispatched(1)
    with pytest.raises(CommandError, match="The archive raised OSError: disk full"):
        call_command("runarchiver", "--once", stdout=io.StringIO())
    assert OutboxMessage.objects.count() == 1


def test_wrong_settings_are_one_sentence(settings: Settings) -> None:
    settings.OUTBOX_LOCK = {"default": {"ARCHIVER": {"minimum_agee": 0}}}
    with pytest.raises(CommandError, match=r"\['ARCHIVER'\]\['minimum_agee'\] is not known"):
        call_command("runarchiver", "--once", skip_checks=True)
