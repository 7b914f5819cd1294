"""The archiver: every message is in exactly one place, and nothing leaves too early."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.db import connection, models
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox_lock import LockLost, Rejected, Sent
from django_outbox_lock.backends.archives.base import BaseArchive
from django_outbox_lock.clock import SECOND
from django_outbox_lock.engines import aged
from django_outbox_lock.engines.archiver import ArchiveFailed, Archiver
from django_outbox_lock.exceptions import InvalidSettings
from django_outbox_lock.locking import locks
from django_outbox_lock.models import ArchivedMessage, OutboxMessage, ProcessingLog
from tests.factories import (
    ArchivedMessageFactory,
    HoldFactory,
    OutboxMessageFactory,
    ProcessingLogFactory,
    now,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_django import Settings

    from django_outbox_lock.backends.archives.base import ArchiveRecord
    from django_outbox_lock.outcomes import Outcome

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600 * SECOND
WHOLE = (
    "message_id",
    "topic",
    "key",
    "order_key",
    "slot",
    "content_type",
    "correlation_id",
    "causation_id",
    "created_at",
    "settled_at",
    "attempts",
)


def archiver(**options: Any) -> Archiver:
    return Archiver.from_settings("default", **{"minimum_age": 0, **options})


class RecordingArchive(BaseArchive):
    """Outside the database: keeps what it is given, and what else happened by then."""

    stored: list[ArchiveRecord] = []
    answer: Outcome = Sent()
    error: Exception | None = None
    transactions: list[bool] = []

    def store(self, records: Sequence[ArchiveRecord]) -> Sequence[Outcome]:
        type(self).transactions.append(connection.in_atomic_block)
        if self.error is not None:
            raise self.error
        type(self).stored.extend(records)
        return [self.answer] * len(records)


@pytest.fixture
def elsewhere(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> type[RecordingArchive]:
    for name, value in {
        "stored": [],
        "transactions": [],
        "answer": Sent(),
        "error": None,
    }.items():
        monkeypatch.setattr(RecordingArchive, name, value)
    backend = f"{__name__}.RecordingArchive"
    settings.OUTBOX_LOCK = {"default": {"ARCHIVE": {"BACKEND": backend}}}
    return RecordingArchive


def test_moves_the_whole_message() -> None:
    body = bytes(range(256))
    sent = OutboxMessageFactory.create(
        dispatched=True,
        topic="order.paid",
        key="7",
        body=body,
        content_type="application/octet-stream",
        headers='{"b": "ä", "a": "2"}',
        causation_id="cause",
        attempts=3,
    )
    work = archiver()
    work.tick()
    assert not OutboxMessage.objects.exists()
    kept = ArchivedMessage.objects.get()
    assert {name: getattr(kept, name) for name in WHOLE} == {
        name: getattr(sent, name) for name in WHOLE
    }
    assert bytes(kept.body) == body
    assert list(json.loads(kept.headers).items()) == [("b", "ä"), ("a", "2")]
    assert work.tally.archived == 1


def test_leaves_what_is_young_outstanding_or_dead() -> None:
    old = OutboxMessageFactory.create(dispatched=True, settled_at=now() - 25 * HOUR)
    left = [
        OutboxMessageFactory.create(dispatched=True, settled_at=now() - 23 * HOUR),
        OutboxMessageFactory.create(),
        OutboxMessageFactory.create(dead=True, settled_at=now() - 1000 * HOUR),
    ]
    archiver(minimum_age=dt.timedelta(hours=24)).tick()
    assert list(ArchivedMessage.objects.values_list("message_id", flat=True)) == [old.message_id]
    assert set(OutboxMessage.objects.values_list("id", flat=True)) == {row.id for row in left}


@pytest.mark.parametrize("batch_size", [1, 999, 1000, 2101, 10_000])
def test_case_123_every_batch_size_drains_everything(batch_size: int) -> None:
    """Case 123: limits of a statement's parameters are not the operator's business."""
    count = 12 if batch_size == 1 else 2300
    OutboxMessage.objects.bulk_create(
        OutboxMessageFactory.build_batch(count, dispatched=True), batch_size=500
    )
    archiver(batch_size=batch_size).tick()
    assert not OutboxMessage.objects.exists()
    assert ArchivedMessage.objects.count() == count


def test_case_127_batches_are_cut_by_rows_not_by_ids(elsewhere: type[RecordingArchive]) -> None:
    """Case 127: ids spread over a billion make no uneven batches."""
    OutboxMessage.objects.bulk_create(
        OutboxMessageFactory.build(dispatched=True, id=number**3 + 1) for number in range(100)
    )
    archiver(batch_size=10).tick()
    assert len(elsewhere.transactions) == 10
    assert len(elsewhere.stored) == 100


def test_a_batch_is_bounded_by_bytes(elsewhere: type[RecordingArchive]) -> None:
    OutboxMessage.objects.bulk_create(
        OutboxMessageFactory.build_batch(4, dispatched=True, body=b"x" * 1000)
    )
    archiver(batch_bytes=2500).tick()
    assert len(elsewhere.transactions) == 2
    assert not OutboxMessage.objects.exists()


def test_an_archive_elsewhere_is_called_outside_any_transaction(
    elsewhere: type[RecordingArchive],
) -> None:
    OutboxMessageFactory.create(dispatched=True)
    archiver().tick()
    assert elsewhere.transactions == [False]


def test_case_129_an_archive_that_raises_deletes_nothing(
    elsewhere: type[RecordingArchive], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 129: a clear error, and everything is still in the outbox."""
    monkeypatch.setattr(elsewhere, "error", OSError("the bucket is gone"))
    OutboxMessageFactory.create(dispatched=True)
    with pytest.raises(ArchiveFailed, match="OSError: the bucket is gone"):
        archiver().tick()
    assert OutboxMessage.objects.count() == 1


def test_what_the_archive_refuses_stays(
    elsewhere: type[RecordingArchive],
    monkeypatch: pytest.MonkeyPatch,
    package_log: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(elsewhere, "answer", Rejected("too large"))
    OutboxMessageFactory.create(dispatched=True)
    work = archiver()
    work.tick()
    assert OutboxMessage.objects.count() == 1
    assert work.tally.refused == 1
    assert "was not archived: too large" in package_log.text


def test_a_message_that_stays_is_told_once(
    elsewhere: type[RecordingArchive],
    monkeypatch: pytest.MonkeyPatch,
    package_log: pytest.LogCaptureFixture,
) -> None:
    """Not at each look: of a thousand of them the log would get a thousand lines a minute."""
    monkeypatch.setattr(elsewhere, "answer", Rejected("too large"))
    OutboxMessageFactory.create(dispatched=True)
    OutboxMessageFactory.create(dispatched=True, headers="[")
    work = archiver()
    work.tick()
    work.tick()
    OutboxMessageFactory.create(dispatched=True)
    work.tick()
    assert package_log.text.count("was not archived: too large") == 2
    assert package_log.text.count("was not archived: Expecting") == 1
    assert work.tally.refused == 7


def test_an_archive_that_answers_one_by_one(
    elsewhere: type[RecordingArchive], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it raises on the way is the archive's failure as well; nothing is deleted then."""

    def one_by_one(_archive: object, records: Sequence[ArchiveRecord]) -> Iterator[Outcome]:
        for record in records:
            if record.envelope.topic == "bad":
                raise OSError("disk full")
            yield Sent()

    monkeypatch.setattr(elsewhere, "store", one_by_one)
    OutboxMessageFactory.create_batch(2, dispatched=True)
    archiver().tick()
    assert not OutboxMessage.objects.exists()
    OutboxMessageFactory.create(dispatched=True)
    OutboxMessageFactory.create(dispatched=True, topic="bad")
    with pytest.raises(ArchiveFailed, match="disk full"):
        archiver().tick()
    assert OutboxMessage.objects.count() == 2


def test_an_archive_that_answers_nothing(
    elsewhere: type[RecordingArchive], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "store", lambda *_: None)
    OutboxMessageFactory.create(dispatched=True)
    with pytest.raises(ArchiveFailed, match="TypeError"):
        archiver().tick()
    assert OutboxMessage.objects.count() == 1


def test_an_archive_that_answers_for_too_few_deletes_nothing(
    elsewhere: type[RecordingArchive], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "store", lambda *_: [])
    OutboxMessageFactory.create(dispatched=True)
    with pytest.raises(ArchiveFailed, match="answered for 0 of 1"):
        archiver().tick()
    assert OutboxMessage.objects.count() == 1


def test_case_003_a_damaged_row_stops_nobody_else() -> None:
    """Case 003, for the archiver."""
    before, damaged, after = OutboxMessageFactory.create_batch(3, dispatched=True)
    OutboxMessage.objects.filter(pk=damaged.pk).update(headers="{not json")
    archiver().tick()
    assert list(OutboxMessage.objects.values_list("id", flat=True)) == [damaged.id]
    kept = set(ArchivedMessage.objects.values_list("message_id", flat=True))
    assert kept == {before.message_id, after.message_id}


@pytest.mark.parametrize(
    ("column", "state"), [("message_id", 20), ("created_at", 30), ("created_at", 20)]
)
def test_case_003_a_value_that_the_driver_refuses_stops_nobody_else(
    column: str, state: int
) -> None:
    """Case 003: only SQLite's columns take such a value; elsewhere the headers are damaged."""
    rows = OutboxMessageFactory.create_batch(5, dispatched=True)
    damaged = rows[1]
    if connection.vendor != "sqlite":
        column, state = "headers", 20
    with connection.cursor() as cursor:
        table = OutboxMessage._meta.db_table
        cursor.execute(
            f"UPDATE {table} SET {column} = 'x', state = {state} WHERE id = {damaged.pk}"
        )
    work = archiver()
    work.tick()
    assert list(OutboxMessage.objects.values_list("id", flat=True)) == [damaged.id]
    assert ArchivedMessage.objects.count() == work.tally.archived == 4


@pytest.mark.parametrize("state", [20, 30])
@pytest.mark.parametrize("column", ["topic", "headers", "created_at"])
@pytest.mark.server("sqlite")
def test_case_003_a_text_that_is_not_utf8_stops_nobody_else(column: str, state: int) -> None:
    """Case 003: only SQLite keeps such a text, and only reading it shows what it is."""
    rows = OutboxMessageFactory.create_batch(5, dispatched=True)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {OutboxMessage._meta.db_table} "
            f"SET {column} = CAST(x'ff' AS TEXT), state = {state} WHERE id = {rows[1].pk}"
        )
    work = archiver()
    work.tick()
    assert list(OutboxMessage.objects.values_list("id", flat=True)) == [rows[1].pk]
    assert ArchivedMessage.objects.count() == work.tally.archived == 4


@pytest.mark.parametrize("value", ["'x'", "CAST(x'ff' AS TEXT)"])
@pytest.mark.parametrize("column", ["created_at", "updated_at"])
@pytest.mark.server("sqlite")
def test_case_003_a_damaged_log_entry_stops_nobody_else(column: str, value: str) -> None:
    """Case 003, for the processing log: what cannot be read is kept."""
    old = timezone.now() - dt.timedelta(days=2)
    entries = [ProcessingLogFactory.create() for _ in range(3)]
    ProcessingLog.objects.update(created_at=old, updated_at=old)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {ProcessingLog._meta.db_table} SET {column} = {value} "
            f"WHERE id = {entries[1].pk}"
        )
    work = archiver(log_minimum_age=dt.timedelta(days=1))
    work.tick()
    assert list(ProcessingLog.objects.values_list("id", flat=True)) == [entries[1].pk]
    assert work.tally.pruned_log == 2


def test_a_message_that_came_back_and_was_sent_again_is_archived_once() -> None:
    sent = OutboxMessageFactory.create(dispatched=True)
    ArchivedMessageFactory.create(message_id=sent.message_id, body=sent.body)
    archiver().tick()
    assert not OutboxMessage.objects.exists()
    assert ArchivedMessage.objects.count() == 1


def test_another_message_under_an_archived_id_is_kept() -> None:
    sent = OutboxMessageFactory.create(dispatched=True)
    ArchivedMessageFactory.create(message_id=sent.message_id, body=b"something else")
    archiver().tick()
    assert OutboxMessage.objects.count() == 1


@pytest.mark.parametrize("in_database", [True, False])
def test_a_holder_that_was_fenced_off_deletes_nothing(
    elsewhere: type[RecordingArchive], monkeypatch: pytest.MonkeyPatch, *, in_database: bool
) -> None:
    """Invariant 3: the transaction of a stale holder is rejected as a whole."""
    monkeypatch.setattr(elsewhere, "in_database", in_database)
    OutboxMessageFactory.create(dispatched=True)
    work = archiver()
    work.look()
    handle = locks["default"].obtain(Archiver.resource)
    assert handle is not None
    locks["default"].force_release(Archiver.resource, handle.token, by="test")
    with pytest.raises(LockLost):
        work.work(handle)
    assert OutboxMessage.objects.count() == 1
    assert work.tally.archived == 0
    assert bool(elsewhere.stored) is not in_database


def test_another_holder_is_left_alone() -> None:
    OutboxMessageFactory.create(dispatched=True)
    handle = locks["default"].obtain(Archiver.resource)
    assert handle is not None
    with handle:
        archiver().tick()
    assert OutboxMessage.objects.count() == 1


def test_statements_of_a_batch_do_not_grow_with_it() -> None:
    statements: list[str] = []

    def count(execute: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return execute(sql, *rest)

    def archived(messages: int) -> int:
        OutboxMessage.objects.bulk_create(
            OutboxMessageFactory.build_batch(messages, dispatched=True)
        )
        statements.clear()
        with connection.execute_wrapper(count):
            archiver().tick()
        assert not OutboxMessage.objects.exists()
        return len(statements)

    archived(1)  # the registry's row and the lock's session are made once
    assert archived(10) == archived(50) > 0


@pytest.mark.parametrize("age", [None, dt.timedelta(hours=72)])
def test_kept_dead_letters_are_passed_over_by_the_server(
    age: dt.timedelta | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 001 as well: one among them that is requeued and sent is found at the next look."""
    monkeypatch.setattr(aged, "STEPS", 2)
    rows = OutboxMessageFactory.create_batch(20, dead=True)
    last = OutboxMessageFactory.create(dispatched=True, settled_at=now() - 100 * HOUR)
    work = archiver(dead_minimum_age=age)
    with CaptureQueriesContext(connection) as captured:
        assert work.look()
    assert len(captured) <= 2
    work.tick()
    assert not OutboxMessage.objects.filter(pk=last.pk).exists()
    OutboxMessage.objects.filter(pk=rows[0].pk).requeue()
    OutboxMessage.objects.mark_dispatched([rows[0].pk])
    OutboxMessage.objects.filter(pk=rows[0].pk).update(settled_at=now() - 100 * HOUR)
    work.tick()
    assert OutboxMessage.objects.count() == 19


def test_prunes_dead_letters_but_no_head_that_holds() -> None:
    gone = OutboxMessageFactory.create(dead=True, settled_at=now() - 100 * HOUR)
    head = OutboxMessageFactory.create(dead=True, settled_at=now() - 100 * HOUR, key="k")
    young = OutboxMessageFactory.create(dead=True)
    displaced = OutboxMessageFactory.create(dead=True, settled_at=now() - 100 * HOUR, key="l")
    HoldFactory.create(order_key=head.order_key, head_id=head.id)
    HoldFactory.create(order_key=displaced.order_key, head_id=2**40, later_head_id=displaced.id)
    work = archiver(dead_minimum_age=dt.timedelta(hours=72))
    work.tick()
    kept = {head.id, displaced.id, young.id}
    assert set(OutboxMessage.objects.values_list("id", flat=True)) == kept
    assert work.tally.pruned_dead == 1
    assert gone.id


def test_prunes_the_processing_log_by_its_own_age() -> None:
    past = timezone.now() - dt.timedelta(days=10)
    ProcessingLogFactory.create_batch(5, created_at=past, updated_at=past)
    redelivered = ProcessingLogFactory.create(created_at=past)
    fresh = ProcessingLogFactory.create()
    work = archiver(log_minimum_age=dt.timedelta(days=7), batch_size=2)
    work.tick()
    assert set(ProcessingLog.objects.values_list("id", flat=True)) == {redelivered.id, fresh.id}
    assert work.tally.pruned_log == 5


def test_keeps_dead_letters_and_the_log_unless_told() -> None:
    past = timezone.now() - dt.timedelta(days=1000)
    OutboxMessageFactory.create(dead=True, settled_at=now() - 20_000 * HOUR, created_at=past)
    ProcessingLogFactory.create(created_at=past, updated_at=past)
    work = archiver()
    work.tick()
    assert OutboxMessage.objects.count() == ProcessingLog.objects.count() == 1


def test_the_walk_ends_where_everything_was_written_too_lately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_outbox_lock.engines.aged.STEPS", 10)
    past = timezone.now() - dt.timedelta(days=3)
    old = {"created_at": past, "settled_at": now() - 72 * HOUR}
    OutboxMessage.objects.bulk_create(OutboxMessageFactory.build_batch(5, dispatched=True, **old))
    OutboxMessage.objects.bulk_create(OutboxMessageFactory.build_batch(100, dispatched=True))
    with CaptureQueriesContext(connection) as captured:
        work = archiver(minimum_age=dt.timedelta(hours=24))
        assert work.survey().archived == 5
    assert len(captured) == 2


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_host_whose_clock_is_ahead_holds_nobody_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, *, use_tz: bool
) -> None:
    """Its rows say that they were written in ten years: the walk must not end there until then."""
    settings.USE_TZ = use_tz
    monkeypatch.setattr("django_outbox_lock.engines.aged.STEPS", 3)
    ahead = timezone.now() + dt.timedelta(days=3650)
    past = timezone.now() - dt.timedelta(days=10)
    ProcessingLogFactory.create_batch(3, created_at=ahead, updated_at=ahead)
    ProcessingLogFactory.create(created_at=past, updated_at=past)
    OutboxMessageFactory.create_batch(3, dispatched=True, created_at=ahead)
    OutboxMessageFactory.create(dispatched=True, settled_at=now() - 72 * HOUR)
    told = archiver(minimum_age=dt.timedelta(hours=24), log_minimum_age=86400).survey()
    assert (told.archived, told.pruned_log) == (1, 1)


def test_an_archiver_whose_clock_is_ahead_prunes_nothing_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    OutboxMessageFactory.create(dispatched=True)
    ProcessingLogFactory.create()
    ahead = timezone.now() + dt.timedelta(days=3650)
    monkeypatch.setattr(timezone, "now", lambda: ahead)
    archiver(minimum_age=86400, log_minimum_age=86400).tick()
    assert OutboxMessage.objects.count() == ProcessingLog.objects.count() == 1


@pytest.fixture
def reference() -> Iterator[Any]:
    """A function that makes a model of the project with a foreign key to one of ours."""
    made: list[Any] = []

    def make(to: type[models.Model], *, table: bool = True, **options: Any) -> Any:
        key = models.ForeignKey(to, on_delete=models.CASCADE, related_name="+", **options)
        meta = type("Meta", (), {"app_label": "shop"})
        names = {"ours": key, "Meta": meta, "__module__": __name__}
        model = type("Reference", (models.Model,), names)
        if table:
            with connection.schema_editor() as editor:
                editor.create_model(model)
            made.append(model)
        return model

    yield make
    for model in made:
        with connection.schema_editor() as editor:
            editor.delete_model(model)
    del apps.all_models["shop"]["reference"]
    apps.clear_cache()


@pytest.mark.parametrize("column", ["id", "message_id"])
def test_a_message_to_which_the_project_refers_stays_and_stops_nobody(
    reference: Any, package_log: pytest.LogCaptureFixture, column: str
) -> None:
    sent = OutboxMessageFactory.create_batch(3, dispatched=True)
    dead = OutboxMessageFactory.create(dead=True, settled_at=now() - HOUR)
    model = reference(OutboxMessage, to_field=column)
    rows = [model.objects.create(ours=message) for message in (sent[1], dead)]
    work = archiver(dead_minimum_age=0)
    work.tick()
    assert set(OutboxMessage.objects.values_list("id", flat=True)) == {sent[1].id, dead.id}
    assert "refers stay where they are: shop.Reference.ours" in package_log.text
    for row in rows:
        row.delete()
    work.tick()
    assert not OutboxMessage.objects.exists()
    assert (work.tally.archived, work.tally.pruned_dead) == (3, 1)


def test_a_log_entry_to_which_the_project_refers_stays_and_stops_nobody(reference: Any) -> None:
    past = timezone.now() - dt.timedelta(days=10)
    entries = ProcessingLogFactory.create_batch(3, created_at=past, updated_at=past)
    reference(ProcessingLog).objects.create(ours=entries[1])
    archiver(log_minimum_age=86400).tick()
    assert ProcessingLog.objects.get() == entries[1]


def test_a_reference_from_a_table_of_another_database_is_no_obstacle(reference: Any) -> None:
    OutboxMessageFactory.create(dispatched=True)
    reference(OutboxMessage, table=False)
    archiver().tick()
    assert not OutboxMessage.objects.exists()


def test_a_reference_that_no_database_defends_keeps_nothing(reference: Any) -> None:
    message = OutboxMessageFactory.create(dispatched=True)
    reference(OutboxMessage, db_constraint=False).objects.create(ours=message)
    archiver().tick()
    assert not OutboxMessage.objects.exists()


def test_survey_tells_and_changes_nothing() -> None:
    OutboxMessageFactory.create_batch(3, dispatched=True)
    OutboxMessageFactory.create(dead=True, settled_at=now() - HOUR)
    told = archiver(dead_minimum_age=0).survey()
    assert (told.archived, told.pruned_dead) == (3, 1)
    assert OutboxMessage.objects.count() == 4


def test_case_001_a_message_that_commits_late_is_archived_later() -> None:
    """Case 001, for the archiver: there is no high-water mark that a low id could miss."""
    high = OutboxMessageFactory.create(dispatched=True, id=1000)
    work = archiver()
    work.tick()
    low = OutboxMessageFactory.create(dispatched=True, id=500)
    work.tick()
    kept = set(ArchivedMessage.objects.values_list("message_id", flat=True))
    assert kept == {high.message_id, low.message_id}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimum_age": -1}, "minimum_age"),
        ({"batch_size": 0}, "batch_size"),
        ({"pause": "long"}, "pause"),
        ({"pause": 300}, r"stall_after must be above pause \(300\)"),  # it would lose the lock
        ({"minimum_ages": 1}, "Did you mean 'minimum_age'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        archiver(**options)


def test_case_091_reads_go_where_the_writes_go(settings: Settings) -> None:
    """Case 091: a router sends reads to a replica that lags, here one without any table."""
    settings.DATABASE_ROUTERS = ["tests.commands.test_runsweeper.Replica"]
    OutboxMessageFactory.create_batch(7, dispatched=True)
    ProcessingLogFactory.create(updated_at=timezone.now() - dt.timedelta(days=3))
    work = archiver(batch_size=3, log_minimum_age=dt.timedelta(days=2))
    work.tick()
    assert (work.tally.archived, work.tally.pruned_log) == (7, 1)
    assert not work.look()
