"""``manage.py runlocked NAME -- COMMAND …``: a management command as a single instance."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from django.core.management.base import CommandError
from django.db import connections

from django_outbox_lock.conf import outbox_settings
from django_outbox_lock.exceptions import LockLost, LockNotObtained
from django_outbox_lock.locking import lock, locks
from django_outbox_lock.management.commands import _arguments
from django_outbox_lock.management.commands._engine import (
    add_database,
    plain_errors,
    refuse_missing_migrations,
)
from django_outbox_lock.management.commands._output import HeardOrNot

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable

# The exit code for "try again later" (EX_TEMPFAIL), which a command hardly uses itself.
LOST = 75


class Command(HeardOrNot):
    """Runs the command as a child process, which can be ended when the lock is lost."""

    help = (
        "Runs a management command while holding the lock NAME, so that it runs in one process at "
        "a time. If somebody else holds it, says so in one line and exits. When the lock is lost, "
        f"ends the command and exits {LOST}. Example: manage.py runlocked nightly -- clearsessions"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.usage = "%(prog)s NAME [options] -- COMMAND [arguments of COMMAND]"
        # On the instance: the class is not for a command to choose.
        parser.error = _with_hint(parser.error)  # type: ignore[assignment, method-assign]
        parser.add_argument(
            "name", metavar="NAME", type=_arguments.resource, help="Name of the lock."
        )
        parser.add_argument(
            "command", metavar="COMMAND", nargs="+", help="The command and its arguments, after --."
        )
        add_database(parser, "Alias of the database whose lock it is.")
        parser.add_argument(
            "--timeout",
            type=_arguments.seconds,
            default=0.0,
            help="Seconds to wait for the lock. Default: 0.",
        )
        parser.add_argument(
            "--minimum-hold",
            type=_arguments.seconds,
            default=0.0,
            help="Seconds for which the lock is held at least, even if the command ends sooner.",
        )
        parser.add_argument(
            "--maximum-hold",
            type=_arguments.pause,
            help="Seconds after which the lock is given up and the command is ended.",
        )
        parser.add_argument(
            "--grace",
            type=_arguments.seconds,
            default=10.0,
            help="Seconds between SIGTERM and SIGKILL when the lock is lost. Default: %(default)s.",
        )
        parser.add_argument(
            "--busy-exit-code",
            type=_arguments.status,
            default=0,
            help="Exit code when somebody else holds the lock. Default: 0.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not hasattr(os, "killpg"):
            raise CommandError(
                "runlocked needs process groups and signals, which this system does not have. "
                "Use lock() inside the command."
            )
        with plain_errors(options["database"]):
            outbox_settings(options["database"])  # an alias without an outbox needs no migration
            refuse_missing_migrations(options["database"])
            code = self._locked(options)
        if code and getattr(self, "_called_from_command_line", False):
            sys.exit(code)
        if code:  # a worker that calls this must not end with it
            raise CommandError(f"runlocked ended with status {code}.", returncode=code)

    def _locked(self, options: dict[str, Any]) -> int:
        # It names signals that some systems do not have.
        from django_outbox_lock.management.commands._child import Child, program

        if not locks[options["database"]].across_processes:
            raise CommandError("The in-memory lock in force shuts out no other process.")
        try:
            with self._lock(options) as handle:
                connections.close_all()  # the command may take hours
                argv = [*program(), *_arguments_of(options)]
                outputs = (self.stdout, self.stderr)
                return Child(argv, handle, grace=options["grace"], outputs=outputs).run()
        except LockNotObtained as busy:
            self.stdout.write(f"Not run: {busy}")
            return int(options["busy_exit_code"])
        except LockLost as lost:
            message = f"{lost} What {options['command'][0]} has not committed is gone."
            raise CommandError(message, returncode=LOST) from lost

    def _lock(self, options: dict[str, Any]) -> lock:
        try:
            return lock(
                options["name"],
                timeout=options["timeout"],
                using=options["database"],
                minimum_hold=options["minimum_hold"],
                maximum_hold=options["maximum_hold"],
            )
        except ValueError as error:
            raise CommandError(str(error)) from error


def _arguments_of(options: dict[str, Any]) -> list[str]:
    path = ["--pythonpath", options["pythonpath"]] if options["pythonpath"] else []
    command, *arguments = options["command"]
    return [command, *path, *arguments]


def _with_hint(error: Callable[[str], NoReturn]) -> Callable[[str], NoReturn]:
    """Name what is forgotten most: without it the command's options are taken for ours."""

    def told(message: str) -> NoReturn:
        error(f"{message} (the command and its options come after --)")

    return told
