"""``manage.py outbox requeue``: send dead messages again, or let their keys go on."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandError

from django_outbox_lock.conf import outbox_settings
from django_outbox_lock.management.commands import _arguments
from django_outbox_lock.management.commands._engine import refuse_missing_migrations
from django_outbox_lock.management.commands._verb import Verb
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.querysets.sametext import SameText

if TYPE_CHECKING:
    from argparse import ArgumentParser


class RequeueVerb(Verb):
    """Does what the admin's actions of these names do, on a selection that must be given."""

    name: ClassVar[str] = "requeue"
    help: ClassVar[str] = "Let dead messages be sent again, or the keys that they hold go on."

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "message_id", metavar="MESSAGE_ID", nargs="*", type=uuid.UUID, help="These messages."
        )
        parser.add_argument(
            "--topic", type=_arguments.topic, help="All dead messages of this topic."
        )
        parser.add_argument("--all", action="store_true", help="All dead messages.")
        parser.add_argument(
            "--limit", type=int, metavar="N", help="At most so many, the oldest first."
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Say how many, and change nothing."
        )
        parser.add_argument(
            "--let-go",
            action="store_true",
            help="Requeue nothing: let the keys that these dead messages hold go on without them.",
        )

    def run(self, options: dict[str, Any]) -> None:
        outbox_settings(self.database)  # an alias without an outbox needs no migration
        _refuse_unclear(options)
        refuse_missing_migrations(self.database)
        rows, limit = self._selected(options), options["limit"]
        if options["let_go"]:
            rows, act, what = rows.holding(), rows.let_go, "Keys let go"
        else:
            act, what = rows.requeue, "Messages requeued"
        if options["dry_run"]:
            self.stdout.write(f"{what}, were this no dry run: {rows[:limit].count():,}.")
        else:
            self.stdout.write(f"{what}: {act(limit=limit):,}.")

    def _selected(self, options: dict[str, Any]) -> Any:
        rows: Any = OutboxMessage.objects.using(self.database).dead()
        if options["message_id"]:
            return rows.filter(message_id__in=options["message_id"])
        return rows if options["all"] else rows.filter(SameText("topic", options["topic"]))


def _refuse_unclear(options: dict[str, Any]) -> None:
    given = (options["message_id"], options["topic"] is not None, options["all"])
    if sum(map(bool, given)) != 1:
        raise CommandError("Say which dead messages: either MESSAGE_ID …, or --topic, or --all.")
    if options["limit"] is not None and options["limit"] < 1:
        raise CommandError("--limit must be at least 1.")
