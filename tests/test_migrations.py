"""The one migration, on every database, and what it says to SQL Server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from tests import offline_mssql

if TYPE_CHECKING:
    from tests.conftest import RunManage


@pytest.mark.parametrize("auto_field", ["AutoField", "BigAutoField", "SmallAutoField"])
def test_the_migration_says_what_the_models_say(run_manage: RunManage, auto_field: str) -> None:
    env = {"DEFAULT_AUTO_FIELD": f"django.db.models.{auto_field}"}
    done = run_manage("makemigrations", "django_outbox_lock", "--check", "--dry-run", env=env)
    assert "No changes detected" in done.stdout


@pytest.mark.django_db
def test_there_is_one_migration_and_it_has_run() -> None:
    applied = MigrationRecorder(connection).applied_migrations()
    assert [name for app, name in applied if app == "django_outbox_lock"] == ["0001_initial"]


def test_the_sql_for_sql_server_is_the_golden_one() -> None:
    """Compiled without a server: see ``tests/offline_mssql.py``, which also writes the file."""
    assert offline_mssql.sqlmigrate() == offline_mssql.GOLDEN.read_text(encoding="utf-8"), (
        "run `python -m tests.offline_mssql` and read the difference"
    )
