"""System checks. Each has an id that is never used again, a hint, and an anchor in the docs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.db import DatabaseError, InterfaceError, connections, router

from django_outbox_lock import conf, handlers, locking
from django_outbox_lock.backends.archives.base import BaseArchive
from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.engines.routing import Routing
from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.exceptions import InvalidSettings, LockUnavailable
from django_outbox_lock.models import (
    ArchivedMessage,
    Hold,
    Lock,
    OutboxMessage,
    ProcessingLog,
    TopicState,
)
from django_outbox_lock.outbox import PublishOptions
from django_outbox_lock.querysets.dialect import unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_outbox_lock.conf import BackendSettings, OutboxSettings

LABEL = "django_outbox_lock"

# An error is told by the section that its text names; what names none is the shape of the whole.
SECTIONS = {
    "LOCK": 2,
    "PUBLISHERS": 3,
    "ROUTES": 3,
    "ARCHIVE": 4,
    "SWEEPER": 5,
    "ARCHIVER": 6,
    "PUBLISH": 7,
    "TOPICS": 12,
}
_SECTION = re.compile(rf"{conf.SETTING}\[[^\]]+\]\['([A-Z]+)'\]")

# Written in one transaction by an engine that has one connection.
TOGETHER = (OutboxMessage, Lock, Hold, TopicState)
ALL = (*TOGETHER, ArchivedMessage, ProcessingLog)

Messages = list[checks.CheckMessage]


def register() -> None:
    """Register every check; called once, when the app is ready."""
    for check in (check_settings, check_routers, check_sqlite):
        checks.register(check)
    for check in (check_lock_store, check_snapshots, check_uuid_columns, check_dialect):
        checks.register(check, checks.Tags.database)


def check_settings(app_configs: object = None, **kwargs: Any) -> Messages:
    """E001 to E007 and E012: what ``OUTBOX_LOCK`` says can be built. No connection is opened."""
    try:
        outboxes = [conf.outbox_settings(alias) for alias in conf.outbox_aliases()]
    except InvalidSettings as error:
        return [_error(1, str(error), "Correct the setting that the message names.")]
    return [message for settings in outboxes for message in _check_outbox(settings)]


def check_routers(app_configs: object = None, **kwargs: Any) -> Messages:
    """E008, E015 and W004: the tables of an outbox are in one database, and that is the outbox's.

    A registry of locks in another database would fence nothing off.
    """
    aliases = {model: router.db_for_write(model) for model in TOGETHER}
    if len(set(aliases.values())) > 1:
        places = ", ".join(f"{model.__name__} to {alias!r}" for model, alias in aliases.items())
        return [
            _error(
                8,
                f"The database routers send the tables of one outbox to several aliases: {places}.",
                f"Let them send the whole app {LABEL!r} to one alias.",
            )
        ]
    return [*_check_default_alias(aliases[OutboxMessage]), *_check_migrations()]


def check_sqlite(app_configs: object = None, **kwargs: Any) -> Messages:
    """W003: a deferred transaction that turns into a write fails at once, whatever the time-out."""
    return [
        _warning(
            3,
            f"DATABASES[{alias!r}] uses SQLite without transaction_mode IMMEDIATE and a timeout.",
            "Set its OPTIONS to {'transaction_mode': 'IMMEDIATE', 'timeout': 20}, else writers "
            "fail with 'database is locked'.",
        )
        for alias in _outbox_aliases()
        if connections[alias].vendor == "sqlite" and not _is_patient(connections[alias])
    ]


def check_lock_store(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E010, E013, E014, W001 and W005: a probe finds out whether the locks are real."""
    return [
        message
        for alias in _outbox_aliases()
        if alias in (databases or ())
        for message in _probe(conf.outbox_settings(alias))
    ]


def check_snapshots(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E011: SQL Server reads the page without locks only with READ_COMMITTED_SNAPSHOT."""
    return [
        _error(
            11,
            f"The SQL Server database of {alias!r} has READ_COMMITTED_SNAPSHOT off.",
            "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE",
        )
        for alias in _outbox_aliases()
        if alias in (databases or ())
        and connections[alias].vendor == "microsoft"
        and not _has_snapshots(connections[alias])
    ]


def check_uuid_columns(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E016: from MariaDB 10.7 on Django writes UUIDs that a column made before does not take."""
    return [
        _error(
            16,
            f"{table}.{column} of {alias!r} is a CHAR(32), made before the server had the type "
            "UUID. Django now writes 36 characters, which do not fit.",
            f"ALTER TABLE {table} MODIFY {column} uuid NOT NULL",
        )
        for alias in _outbox_aliases()
        if alias in (databases or ())
        for table, column in _old_uuid_columns(connections[alias])
    ]


def check_dialect(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Messages:
    """E017: where a page's outcomes cannot be written, its messages would be sent for ever."""
    reasons = {
        alias: unsupported(connections[alias])
        for alias in _outbox_aliases()
        if alias in (databases or ())
    }
    return [
        _error(
            17,
            f"The database of {alias!r} cannot have an outbox: {reason}.",
            "Locks and the processing log work; put the outbox on another database.",
        )
        for alias, reason in reasons.items()
        if reason
    ]


def _check_outbox(settings: OutboxSettings) -> Iterator[checks.CheckMessage]:
    alias = settings.alias
    said: set[str] = set()
    for build in (
        lambda: locking.build(alias, settings.lock).check(),
        *(_checking_publisher(found) for found in settings.publishers.values()),
        lambda: _built(BaseArchive, settings.archive, alias).check(),
        lambda: OptionsOnlySweeper.from_settings(alias),
        lambda: Archiver.from_settings(alias),
        lambda: handlers.construct(PublishOptions, settings.publish.options, settings.publish.path),
    ):
        for message in _tried(build):
            if message.msg not in said:  # engines build what was built before them
                said.add(message.msg)
                yield message


def _checking_publisher(settings: BackendSettings) -> Callable[[], Messages]:
    return lambda: _built(BasePublisher, settings).check()


class OptionsOnlySweeper(Sweeper):
    """A sweeper that is not run: without any publisher its options are right or wrong as well."""

    def route(self, settings: OutboxSettings) -> Routing:
        path = f"{conf.SETTING}[{settings.alias!r}]['PUBLISHERS']"
        console = {conf.DEFAULT_PUBLISHER: conf.BackendSettings(path, conf.CONSOLE_PUBLISHER)}
        return Routing(replace(settings, publishers=settings.publishers or console))


def _built(base: type[Any], settings: BackendSettings, *given: Any) -> Any:
    cls = handlers.load(settings.path, str(settings.backend), base)
    return handlers.construct(cls, settings.options, f"{settings.path}['OPTIONS']", *given)


def _tried(build: Callable[[], Any]) -> Messages:
    try:
        found = build()
    except InvalidSettings as error:
        section = _SECTION.search(str(error))
        number = SECTIONS.get(section[1], 1) if section else 1
        return [_error(number, str(error), "Correct the setting that the message names.")]
    return found if isinstance(found, list) else []


def _check_default_alias(alias: str) -> Iterator[checks.CheckMessage]:
    outboxes = _outbox_aliases()
    if outboxes and alias not in outboxes:
        yield _warning(
            4,
            f"publish() without `using` writes to {alias!r}, which has no outbox.",
            f"Add {alias!r} to {conf.SETTING}, route {LABEL!r} to one of "
            f"{', '.join(outboxes)}, or always give `using`.",
        )


def _check_migrations() -> Iterator[checks.CheckMessage]:
    for alias in _outbox_aliases():
        missing = [m.__name__ for m in ALL if not router.allow_migrate_model(alias, m)]
        if missing:
            yield _error(
                15,
                f"The database routers keep tables out of {alias!r}, which has an outbox: "
                f"{', '.join(missing)}.",
                f"Let allow_migrate() return True for {LABEL!r} on {alias!r}.",
            )


def _probe(settings: OutboxSettings) -> Iterator[checks.CheckMessage]:
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
        yield _error(13, str(error), "Name an alias that leads to the same database.")
    except (DatabaseError, InterfaceError, LockUnavailable) as error:
        text = f"The lock of {alias!r} could not be tried out: {error}"
        yield _error(14, text, "Nothing is known about the lock: check again.")
    else:
        if not result.usable:
            yield _unusable(alias, result.reason, forced=settings.lock.backend is not None)
        elif result.reason:
            text = f"The lock of the database {alias!r} can be lost without need: {result.reason}."
            yield _warning(5, text, "Change the store's settings; the fence holds all the same.")
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


def _outbox_aliases() -> tuple[str, ...]:
    try:
        return conf.outbox_aliases()
    except InvalidSettings:  # E001 tells
        return ()


def _is_patient(connection: BaseDatabaseWrapper) -> bool:
    options = connection.settings_dict["OPTIONS"]
    mode = str(options.get("transaction_mode", "")).upper()
    return mode in {"IMMEDIATE", "EXCLUSIVE"} and "timeout" in options


def _unusable(alias: str, reason: str, *, forced: bool) -> checks.CheckMessage:
    text = f"The lock of the database {alias!r} cannot be trusted: {reason}."
    if forced:
        return _error(10, text, "Remove LOCK['BACKEND'], or set 'session_using' past the pooler.")
    return _warning(1, text, "The lease table is used instead; or set 'session_using'.")


def _error(number: int, text: str, hint: str) -> checks.CheckMessage:
    return checks.Error(text, hint=_anchored(hint, f"e{number:03}"), id=f"{LABEL}.E{number:03}")


def _warning(number: int, text: str, hint: str) -> checks.CheckMessage:
    return checks.Warning(text, hint=_anchored(hint, f"w{number:03}"), id=f"{LABEL}.W{number:03}")


def _anchored(hint: str, anchor: str) -> str:
    return f"{hint} (docs: checks.html#{anchor})"
