"""Checks of what the settings say; none of them opens a connection."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db import connections, router

from django_outbox_lock import conf, handlers, locking
from django_outbox_lock.backends.archives.base import BaseArchive
from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.checks.messages import (
    ALL,
    APP,
    TOGETHER,
    Messages,
    a_warning,
    an_error,
    outbox_aliases,
)
from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.engines.routing import Routing
from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.exceptions import InvalidSettings
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.outbox import PublishOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_outbox_lock.conf import BackendSettings, OutboxSettings

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


def check_settings(app_configs: object = None, **kwargs: Any) -> Messages:
    """E001 to E007 and E012: what ``OUTBOX_LOCK`` says can be built. No connection is opened."""
    try:
        outboxes = [conf.outbox_settings(alias) for alias in conf.outbox_aliases()]
    except InvalidSettings as error:
        return [an_error(1, str(error), "Correct the setting that the message names.")]
    return [message for settings in outboxes for message in _check_outbox(settings)]


def check_routers(app_configs: object = None, **kwargs: Any) -> Messages:
    """E008, E015 and W004: the tables of an outbox are in one database, and that is the outbox's.

    A registry of locks in another database would fence nothing off.
    """
    aliases = {model: router.db_for_write(model) for model in TOGETHER}
    if len(set(aliases.values())) > 1:
        places = ", ".join(f"{model.__name__} to {alias!r}" for model, alias in aliases.items())
        return [
            an_error(
                8,
                f"The database routers send the tables of one outbox to several aliases: {places}.",
                f"Let them send the whole app {APP!r} to one alias.",
            )
        ]
    return [*_check_default_alias(aliases[OutboxMessage]), *_check_migrations()]


def check_sqlite(app_configs: object = None, **kwargs: Any) -> Messages:
    """W003: a deferred transaction that turns into a write fails at once, whatever the time-out."""
    return [
        a_warning(
            3,
            f"DATABASES[{alias!r}] uses SQLite without transaction_mode IMMEDIATE and a timeout.",
            "Set its OPTIONS to {'transaction_mode': 'IMMEDIATE', 'timeout': 20}, else writers "
            "fail with 'database is locked'.",
        )
        for alias in outbox_aliases()
        if connections[alias].vendor == "sqlite" and not _is_patient(connections[alias])
    ]


def _check_outbox(settings: OutboxSettings) -> Iterator[CheckMessage]:
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
        return [an_error(number, str(error), "Correct the setting that the message names.")]
    return found if isinstance(found, list) else []


def _check_default_alias(alias: str) -> Iterator[CheckMessage]:
    outboxes = outbox_aliases()
    if outboxes and alias not in outboxes:
        yield a_warning(
            4,
            f"publish() without `using` writes to {alias!r}, which has no outbox.",
            f"Add {alias!r} to {conf.SETTING}, route {APP!r} to one of "
            f"{', '.join(outboxes)}, or always give `using`.",
        )


def _check_migrations() -> Iterator[CheckMessage]:
    for alias in outbox_aliases():
        missing = [m.__name__ for m in ALL if not router.allow_migrate_model(alias, m)]
        if missing:
            yield an_error(
                15,
                f"The database routers keep tables out of {alias!r}, which has an outbox: "
                f"{', '.join(missing)}.",
                f"Let allow_migrate() return True for {APP!r} on {alias!r}.",
            )


def _is_patient(connection: BaseDatabaseWrapper) -> bool:
    options = connection.settings_dict["OPTIONS"]
    mode = str(options.get("transaction_mode", "")).upper()
    return mode in {"IMMEDIATE", "EXCLUSIVE"} and "timeout" in options
