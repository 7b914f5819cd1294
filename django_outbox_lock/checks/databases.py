"""Checks that ask a database; run where ``check --database`` or ``migrate`` names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError, connections

from django_outbox_lock import conf, locking
from django_outbox_lock.checks.messages import ALL, Messages, a_warning, an_error, outbox_aliases
from django_outbox_lock.exceptions import InvalidSettings, LockUnavailable
from django_outbox_lock.models import Lock
from django_outbox_lock.querysets.dialect import unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_outbox_lock.conf import OutboxSettings


def check_lock_store(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E010, E013, E014, W001 and W005: a probe finds out whether the locks are real."""
    return [
        message
        for alias in outbox_aliases()
        if alias in (databases or ())
        for message in _probe(conf.outbox_settings(alias))
    ]


def check_snapshots(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E011: SQL Server reads the page without locks only with READ_COMMITTED_SNAPSHOT."""
    return [
        an_error(
            11,
            f"The SQL Server database of {alias!r} has READ_COMMITTED_SNAPSHOT off.",
            "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE",
        )
        for alias in outbox_aliases()
        if alias in (databases or ())
        and connections[alias].vendor == "microsoft"
        and not _has_snapshots(connections[alias])
    ]


def check_uuid_columns(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E016: from MariaDB 10.7 on Django writes UUIDs that a column made before does not take."""
    return [
        an_error(
            16,
            f"{table}.{column} of {alias!r} is a CHAR(32), made before the server had the type "
            "UUID. Django now writes 36 characters, which do not fit.",
            f"ALTER TABLE {table} MODIFY {column} uuid NOT NULL",
        )
        for alias in outbox_aliases()
        if alias in (databases or ())
        for table, column in _old_uuid_columns(connections[alias])
    ]


def check_dialect(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E017: where a page's outcomes cannot be written, its messages would be sent for ever."""
    reasons = {
        alias: unsupported(connections[alias])
        for alias in outbox_aliases()
        if alias in (databases or ())
    }
    return [
        an_error(
            17,
            f"The database of {alias!r} cannot have an outbox: {reason}.",
            "Locks and the processing log work; put the outbox on another database.",
        )
        for alias, reason in reasons.items()
        if reason
    ]


def check_isolation(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E018: under READ UNCOMMITTED the sweeper would send what is rolled back afterwards."""
    return [
        an_error(
            18,
            f"The sessions of {alias!r} read what is not committed (READ UNCOMMITTED): messages "
            "of transactions that are rolled back would be sent.",
            "Set OPTIONS['isolation_level'] of that alias to 'read committed'.",
        )
        for alias in outbox_aliases()
        if alias in (databases or ()) and _reads_uncommitted(connections[alias])
    ]


def _probe(settings: OutboxSettings) -> Iterator[CheckMessage]:
    alias = settings.alias
    try:
        backend = locking.build(alias, settings.lock)
    except InvalidSettings:  # E002 tells
        return
    try:
        if not _is_migrated(connections[alias]):
            return  # `migrate` runs this check before it makes the tables
        result = backend.probe()
    except InvalidSettings as error:
        yield an_error(13, str(error), "Name an alias that leads to the same database.")
    except (DatabaseError, InterfaceError, LockUnavailable) as error:
        text = f"The lock of {alias!r} could not be tried out: {error}"
        yield an_error(14, text, "Nothing is known about the lock: check again.")
    else:
        if not result.usable:
            yield _unusable(alias, result.reason, forced=settings.lock.backend is not None)
        elif result.reason:
            text = f"The lock of the database {alias!r} can be lost without need: {result.reason}."
            yield a_warning(5, text, "Change the store's settings; the fence holds all the same.")
    finally:
        backend.close()


def _is_migrated(connection: BaseDatabaseWrapper) -> bool:
    with connection.cursor() as cursor:
        return Lock._meta.db_table in connection.introspection.table_names(cursor)


def _has_snapshots(connection: BaseDatabaseWrapper) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT is_read_committed_snapshot_on FROM sys.databases WHERE name = DB_NAME()"
        )
        return bool(cursor.fetchone()[0])


def _reads_uncommitted(connection: BaseDatabaseWrapper) -> bool:
    """The others have no such level, or give READ COMMITTED for it."""
    if connection.vendor == "microsoft":
        sql = (
            "SELECT transaction_isolation_level FROM sys.dm_exec_sessions WHERE session_id = @@SPID"
        )
    elif connection.vendor in {"mysql", "tidb"}:
        old_name = getattr(connection, "mysql_is_mariadb", False)
        sql = f"SELECT @@SESSION.{'tx' if old_name else 'transaction'}_isolation"
    else:
        return False
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0] in {"READ-UNCOMMITTED", 1}


def _old_uuid_columns(connection: BaseDatabaseWrapper) -> Sequence[tuple[str, str]]:
    if connection.vendor != "mysql" or not connection.features.has_native_uuid_field:
        return ()
    tables = [model._meta.db_table for model in ALL]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE data_type = 'char' AND table_schema = DATABASE()"
            " AND column_name = 'message_id' AND table_name IN %s"
            " ORDER BY table_name",
            [tables],
        )
        return list(cursor.fetchall())


def _unusable(alias: str, reason: str, *, forced: bool) -> CheckMessage:
    text = f"The lock of the database {alias!r} cannot be trusted: {reason}."
    if forced:
        return an_error(10, text, "Remove LOCK['BACKEND'], or set 'session_using' past the pooler.")
    return a_warning(1, text, "The lease table is used instead; or set 'session_using'.")
