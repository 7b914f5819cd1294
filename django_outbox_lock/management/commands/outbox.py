"""``manage.py outbox VERB``: look at an outbox and its locks, and set things right."""

from __future__ import annotations

from argparse import SUPPRESS
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, DjangoHelpFormatter

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
            verb_parser = verbs.add_parser(
                verb.name,
                help=verb.help,
                description=verb.help,
                parents=[_djangos_own()],
                formatter_class=DjangoHelpFormatter,
            )
            verb.add_arguments(verb_parser)

    def handle(self, *args: Any, verb: str, database: str, **options: Any) -> None:
        chosen = next(candidate for candidate in VERBS if candidate.name == verb)
        with plain_errors(database):
            try:
                chosen(database, self.stdout).run(options)
                self.stdout.flush()
            except BrokenPipeError:  # as of `head`: it has read what it wanted
                silence(self.stdout)


def _djangos_own() -> ArgumentParser:
    """The options that every command has: after the verb, too, where people write them."""
    parser = BaseCommand().create_parser("", "", add_help=False)
    for action in parser._actions:  # noqa: SLF001 (as Django's call_command looks at them)
        action.default = SUPPRESS  # what stands before the verb stays
    return parser
