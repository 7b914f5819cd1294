"""``manage.py outbox locks``: who holds what, and ending a holder by force."""

from __future__ import annotations

import getpass
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandError
from django.core.serializers.json import DjangoJSONEncoder

from django_outbox_lock import fence
from django_outbox_lock.conf import outbox_settings
from django_outbox_lock.locking import locks
from django_outbox_lock.management.commands import _arguments
from django_outbox_lock.management.commands._engine import refuse_missing_migrations
from django_outbox_lock.management.commands._tables import holders_table
from django_outbox_lock.management.commands._verb import Verb

if TYPE_CHECKING:
    from argparse import ArgumentParser


class LocksVerb(Verb):
    """Lists the resources, ends one holder, or lifts all tokens after a restore."""

    name: ClassVar[str] = "locks"
    help: ClassVar[str] = "List who holds which lock; release one by force."

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="One JSON array, for programs.")
        parser.add_argument(
            "--watch",
            type=_arguments.pause,
            nargs="?",
            const=2.0,
            metavar="SECONDS",
            help="List again and again until Ctrl-C. Default: every %(const)s seconds.",
        )
        parser.add_argument(
            "--release",
            metavar="RESOURCE",
            type=_arguments.resource,
            help="End the holder whose token is --token.",
        )
        parser.add_argument("--token", type=int, help="The token as it was listed.")
        parser.add_argument(
            "--after-restore",
            action="store_true",
            help="After restoring a backup: lift every token above what was lost.",
        )

    def run(self, options: dict[str, Any]) -> None:
        outbox_settings(self.database)  # an alias without an outbox needs no migration
        refuse_missing_migrations(self.database)
        if options["token"] is not None and options["release"] is None:
            raise CommandError("--token needs --release: the resource whose holder is to be ended.")
        if options["after_restore"]:
            count = fence.lift(self.database, _operator())
            self.stdout.write(f"The tokens of {count} resources were lifted; holders are fenced.")
        elif options["release"] is not None:
            self._release(options["release"], options["token"])
        else:
            self._list(as_json=options["json"], every=options["watch"])

    def _release(self, resource: str, token: int | None) -> None:
        if token is None:
            raise CommandError("--release needs --token: the token as it was listed.")
        if not locks[self.database].force_release(resource, token, by=_operator()):
            raise CommandError(
                f"{resource} is not held under token {token} any more: nothing was done."
            )
        self.stdout.write(f"{resource}: the holder with token {token} was ended.")

    def _list(self, *, as_json: bool, every: float | None) -> None:
        try:
            while True:
                self.stdout.write(self._listing(as_json=as_json))
                if every is None:
                    return
                self.stdout.flush()
                time.sleep(every)
        except KeyboardInterrupt:
            return

    def _listing(self, *, as_json: bool) -> str:
        holders = locks[self.database].holders()
        if as_json:
            return json.dumps([asdict(row) for row in holders], cls=DjangoJSONEncoder)
        return holders_table(holders)


def _operator() -> str:
    try:
        return f"{getpass.getuser()} (command line)"
    except (KeyError, OSError):  # a container without a passwd entry
        return "command line"
