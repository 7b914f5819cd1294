"""``manage.py outbox VERB``: look at an outbox and its locks, and set things right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_outbox_lock.management.commands._engine import plain_errors
from django_outbox_lock.management.commands._locks import LocksVerb
from django_outbox_lock.management.commands._output import HeardOrNot, silence
from django_outbox_lock.management.commands._provision import ProvisionVerb
from django_outbox_lock.management.commands._requeue import RequeueVerb
from django_outbox_lock.management.commands._status import StatusVerb

if TYPE_CHECKING:
    from argparse import ArgumentParser

VERBS = (StatusVerb, RequeueVerb, LocksVerb, ProvisionVerb)


class Command(HeardOrNot):
    """Parses, and leaves the work to the verb."""

    help = "Looks at an outbox and its locks, and sets things right."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(title="verbs", dest="verb", required=True)
        for verb in VERBS:
            verb.add_arguments(verbs.add_parser(verb.name, help=verb.help))

    def handle(self, *args: Any, verb: str, database: str, **options: Any) -> None:
        chosen = next(candidate for candidate in VERBS if candidate.name == verb)
        with plain_errors(database):
            try:
                chosen(database, self.stdout).run(options)
                self.stdout.flush()
            except BrokenPipeError:  # as of `head`: it has read what it wanted
                silence(self.stdout)
