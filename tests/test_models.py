"""The tables as they are in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.core import checks
from django.db import connection
from django.db.models.sql import InsertQuery

from tests import factories

if TYPE_CHECKING:
    from django.db.models import Model

FACTORIES: list[Any] = [
    factories.OutboxMessageFactory,
    factories.ArchivedMessageFactory,
    factories.ProcessingLogFactory,
    factories.LockFactory,
    factories.HoldFactory,
    factories.TopicStateFactory,
]
BY_MODEL = pytest.mark.parametrize("factory", FACTORIES, ids=lambda f: f._meta.model.__name__)


def columns(row: Model) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_every_table_has_a_factory() -> None:
    made = {factory._meta.model for factory in FACTORIES}
    assert made == set(apps.get_app_config("django_outbox_lock").get_models())


@pytest.mark.django_db
@BY_MODEL
def test_a_row_comes_back_as_it_was_written(factory: Any) -> None:
    row = factory.create()
    row.refresh_from_db()
    again = type(row).objects.get(pk=row.pk)
    assert columns(again) == columns(row)
    assert str(again)


@pytest.mark.django_db
@BY_MODEL
def test_the_database_fills_every_column_that_it_can(factory: Any) -> None:
    row = factory.build()
    model = type(row)
    fields = [
        field
        for field in model._meta.concrete_fields
        if not (field.null or field.has_db_default() or field is model._meta.auto_field)
    ]
    query = InsertQuery(model)
    query.insert_values(fields, [row])
    query.get_compiler("default").execute_sql()
    written = model.objects.get()
    defaults = [f for f in model._meta.concrete_fields if f.has_db_default()]
    assert {f.name: getattr(written, f.name) for f in defaults} == {
        f.name: f.db_default for f in defaults
    }


@pytest.mark.django_db
def test_traits_make_settled_and_held_rows() -> None:
    dead = factories.OutboxMessageFactory.create(dead=True)
    sent = factories.OutboxMessageFactory.create(dispatched=True)
    held = factories.LockFactory.create(held=True)
    opened = factories.TopicStateFactory.create(open=True)
    assert (dead.due_at, sent.due_at) == (None, None)
    assert held.expires_at - held.acquired_at == held.lease
    assert opened.breaker == "open"


@pytest.mark.django_db
def test_names_that_a_collation_takes_for_one_are_different_rows() -> None:
    """The unique values are hashes: no server's collation has a say."""
    for key in ("Order-A", "order-a", "café", "cafe", "a", "a "):
        factories.ProcessingLogFactory.create(key=key)
        factories.TopicStateFactory.create(topic=key)
        factories.LockFactory.create(resource=key)


def test_nobody_can_add_change_or_delete_rows_by_permission() -> None:
    for model in apps.get_app_config("django_outbox_lock").get_models():
        assert model._meta.default_permissions == ("view",), model


@pytest.mark.django_db
def test_no_database_warns_of_the_models() -> None:
    app = apps.get_app_config("django_outbox_lock")
    messages = checks.run_checks(app_configs=[app], databases=[connection.alias])
    assert [m for m in messages if str(m.id).startswith(("models.", "fields.", "mysql."))] == []
