"""System checks, each documented under its id."""

from __future__ import annotations

from django.core import checks

from django_outbox_lock.checks.configuration import check_routers, check_settings, check_sqlite
from django_outbox_lock.checks.databases import (
    check_dialect,
    check_isolation,
    check_lock_store,
    check_snapshots,
    check_uuid_columns,
)

CONFIGURATION = (check_settings, check_routers, check_sqlite)
DATABASES = (
    check_lock_store,
    check_snapshots,
    check_uuid_columns,
    check_dialect,
    check_isolation,
)


def register() -> None:
    """Register every check; called once, when the app is ready."""
    for check in CONFIGURATION:
        checks.register(check)
    for check in DATABASES:
        checks.register(check, checks.Tags.database)
