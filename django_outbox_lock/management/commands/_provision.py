"""``manage.py outbox provision``: make what the lock's store needs, or verify that it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandError

from django_outbox_lock import conf, locking
from django_outbox_lock.management.commands._verb import Verb

if TYPE_CHECKING:
    from argparse import ArgumentParser


class ProvisionVerb(Verb):
    """Needs more rights than the application: run it once, when a store is set up."""

    name: ClassVar[str] = "provision"
    help: ClassVar[str] = "Make what the lock's store needs: a table, a container."

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--check", action="store_true", help="Make nothing; fail if something is missing."
        )

    def run(self, options: dict[str, Any]) -> None:
        backend = locking.build(self.database, conf.outbox_settings(self.database).lock)
        try:
            if not options["check"]:
                self.stdout.write(backend.provision())
                return
            missing = backend.missing()
            if missing:
                what = missing[0].upper() + missing[1:].rstrip(".")
                raise CommandError(f"{what}. Run manage.py outbox provision.")
            self.stdout.write("Nothing is missing.")
        finally:
            backend.close()
