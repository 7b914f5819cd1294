"""What the commands that run an engine have in common: options, signals, and plain errors."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionDoesNotExist

from django_outbox_lock import dberrors
from django_outbox_lock.conf import DEFAULT_ALIAS, outbox_settings
from django_outbox_lock.exceptions import OutboxLockError
from django_outbox_lock.management.commands._output import HeardOrNot, silence
from django_outbox_lock.management.commands._signals import stopped_by_signals
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator

    from django_outbox_lock.engines.base import Engine


class EngineCommand(HeardOrNot):
    """Runs one engine until it is told to stop, or one cycle of it."""

    engine: ClassVar[type[Engine]]

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_database(parser, "Alias of the database whose outbox it is.")
        parser.add_argument(
            "--interval", type=float, help="Seconds between two looks, instead of the setting."
        )
        parser.add_argument(
            "--batch-size", type=int, help="Messages at a time, instead of the setting."
        )
        parser.add_argument(
            "--once", action="store_true", help="Work until nothing is left, then exit."
        )

    def overrides(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of the engine that were given on the command line."""
        names = ("interval", "batch_size")
        return {name: options[name] for name in names if options[name] is not None}

    def prepare(self, engine: Engine) -> None:
        """Called before the engine starts."""

    def conclude(self, engine: Engine) -> None:
        """Called when the engine has ended without an error."""

    def tell(self, text: str, ending: str = "\n") -> None:
        """Write to the output; a reader or a terminal that is gone must not end the work."""
        try:
            self.stdout.write(text, ending=ending)
            self.stdout.flush()
        except OSError:
            silence(self.stdout)

    def get_check_kwargs(self, options: dict[str, Any]) -> Any:
        return {**super().get_check_kwargs(options), "databases": [options["database"]]}

    def check(self, *args: Any, **kwargs: Any) -> None:
        with plain_errors(*kwargs.get("databases") or [DEFAULT_ALIAS]):
            for alias in kwargs.get("databases") or []:
                connections[alias].ensure_connection()  # its own sentence, before any check's
            super().check(*args, **kwargs)

    def handle(self, *args: Any, **options: Any) -> None:
        alias: str = options["database"]
        with plain_errors(alias):
            outbox_settings(alias)  # an alias without an outbox needs no migration
            replace_dead_session(alias)
            refuse_missing_migrations(alias)
            engine = self.engine.from_settings(alias, **self.overrides(options))
            self.prepare(engine)
            with stopped_by_signals(engine):
                self.start(engine, options)
            self.conclude(engine)

    def start(self, engine: Engine, options: dict[str, Any]) -> None:
        """Run the engine until it ends."""
        if not options["once"]:
            engine.run()
            return
        try:
            engine.tick()
        finally:
            engine.close()


def add_database(parser: ArgumentParser, meaning: str) -> None:
    """The option ``--database``, as every command has it."""
    parser.add_argument(
        "--database",
        default=DEFAULT_ALIAS,
        choices=tuple(connections),
        help=f"{meaning} Default: %(default)s.",
    )


def replace_dead_session(alias: str) -> None:
    """A caller that lives long may bring a session that died while nobody used it."""
    connection = connections[alias]
    if connection.connection is None or connection.in_atomic_block:
        return
    if not connection.is_usable():
        connection.close()


def refuse_missing_migrations(alias: str) -> None:
    """Raise ``CommandError`` unless every migration of this app is applied on ``alias``."""
    executor = MigrationExecutor(connections[alias])
    app = Lock._meta.app_label
    if executor.migration_plan(executor.loader.graph.leaf_nodes(app)):
        raise CommandError(
            f"{app} has migrations that are not applied on {alias!r}: "
            f"run manage.py migrate {app} --database {alias}."
        )


@contextlib.contextmanager
def plain_errors(alias: str, *_: str) -> Iterator[None]:
    """What a person can put right becomes one clear sentence and a non-zero exit."""
    try:
        yield
    except (
        ImproperlyConfigured,
        TransactionManagementError,
        ConnectionDoesNotExist,
        OutboxLockError,
    ) as error:
        raise CommandError(str(error)) from error
    except (DatabaseError, InterfaceError) as error:
        raise CommandError(_sentence(alias, error)) from error


def _sentence(alias: str, error: Exception) -> str:
    words = " ".join(str(error).split())
    if dberrors.is_connection_lost(error):
        return f"The database {alias!r} cannot be reached: {words}"
    if dberrors.is_lock_timeout(error):
        return f"The database {alias!r} is locked by somebody else: {words}"
    return f"The database {alias!r} refused: {words}"
