"""Partial where the database can, whole elsewhere, and no warning anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections
from django.db.migrations.writer import MigrationWriter

from django_outbox_lock.indexes import NotEmptyIndex, NotNullIndex
from django_outbox_lock.models import OutboxMessage

if TYPE_CHECKING:
    from django.db.models import Index

INDEX = NotNullIndex(fields=["due_at", "-id"], name="outboxlock_due", not_null="due_at")
DEAD = NotEmptyIndex(fields=["dead_reason", "id"], name="outboxlock_dead", not_empty="dead_reason")


def create_sql(index: Index = INDEX, *, partial: bool) -> str:
    fresh = connections["default"].copy()
    fresh.features.supports_partial_indexes = partial
    editor = fresh.SchemaEditorClass(fresh, collect_sql=True)
    return str(index.create_sql(OutboxMessage, editor))


def test_the_condition_stands_where_the_database_can() -> None:
    assert create_sql(partial=True) == (
        'CREATE INDEX "outboxlock_due" ON "django_outbox_lock_outboxmessage" ("due_at", "id" DESC) '
        'WHERE "due_at" IS NOT NULL'
    )


def test_elsewhere_the_index_is_whole() -> None:
    assert create_sql(partial=False) == (
        'CREATE INDEX "outboxlock_due" ON "django_outbox_lock_outboxmessage" ("due_at", "id" DESC)'
    )


def test_the_empty_text_stands_in_the_condition_as_a_literal() -> None:
    assert create_sql(DEAD, partial=True) == (
        'CREATE INDEX "outboxlock_dead" '
        'ON "django_outbox_lock_outboxmessage" ("dead_reason", "id") '
        """WHERE "dead_reason" > ('')"""
    )


@pytest.mark.parametrize("index", [INDEX, DEAD])
def test_migrations_can_write_and_compare_it(index: Index) -> None:
    text, _ = MigrationWriter.serialize(index)
    scope: dict[str, Any] = {}
    exec("import django_outbox_lock.indexes, django.db.models as models", scope)
    assert eval(text, scope) == index == index.clone()


def test_another_field_makes_another_index() -> None:
    assert NotNullIndex(fields=["due_at", "-id"], name="outboxlock_due", not_null="id") != INDEX


@pytest.mark.django_db
def test_the_table_has_its_indexes() -> None:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, OutboxMessage._meta.db_table)
    assert found["outboxlock_due"]["columns"] == ["due_at", "id"]
    assert found["outboxlock_order"]["columns"] == ["order_key", "state", "id"]
    assert found["outboxlock_dead"]["columns"] == ["dead_reason", "id"]
