"""The SQL of the migration for SQL Server, compiled where no SQL Server is.

``sqlmigrate`` asks a server for its version; here the answer is given by hand (2022), and nothing
else is asked. ``python -m tests.offline_mssql`` writes the golden file anew.
"""

from __future__ import annotations

from pathlib import Path

import django
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.utils import load_backend

GOLDEN = Path(__file__).parent / "golden" / "0001_initial.mssql.sql"
MIGRATION = ("django_outbox_lock", "0001_initial")


def sqlmigrate() -> str:
    settings = connections["default"].settings_dict | {"ENGINE": "mssql", "OPTIONS": {}}
    connection = load_backend("mssql").DatabaseWrapper(settings, "default")
    connection.sql_server_version, connection.to_azure_sql_db = 2022, False
    loader = MigrationLoader(None)
    state = loader.project_state([MIGRATION], at_end=False)
    with connection.schema_editor(collect_sql=True, atomic=False) as editor:
        loader.get_migration(*MIGRATION).apply(state, editor, collect_sql=True)
        # mssql-django defers the indexes of a set, in the order of their hashes.
        editor.deferred_sql.sort(key=str)
    return "\n".join([*editor.collected_sql, ""])


if __name__ == "__main__":
    django.setup()
    GOLDEN.write_text(sqlmigrate(), encoding="utf-8")
