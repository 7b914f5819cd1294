"""``manage.py outbox status``: what waits, why, and who works; for people and for probes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections

from django_outbox_lock import registry
from django_outbox_lock.conf import outbox_settings
from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.management.commands import _arguments
from django_outbox_lock.management.commands._engine import refuse_missing_migrations
from django_outbox_lock.management.commands._tables import holders_table, table
from django_outbox_lock.management.commands._verb import Verb
from django_outbox_lock.models import OutboxMessage, TopicState
from django_outbox_lock.querysets.standing import LIMIT, Standing, standing

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django_outbox_lock.holder import Holder

TOPICS = 100
_WORDS = {
    "due": "outstanding, due",
    "waiting": "outstanding, waiting for their time",
    "behind_keys": "outstanding, parked behind their key",
    "behind_topics": "outstanding, parked behind their topic",
    "dead": "dead",
}


class StatusVerb(Verb):
    """Reads a bounded number of rows, however many there are."""

    name: ClassVar[str] = "status"
    help: ClassVar[str] = "Show what waits and why, what is dead, and who works."

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="One JSON object, for programs.")
        parser.add_argument(
            "--fail-if-older",
            type=_arguments.seconds,
            metavar="SECONDS",
            help="Exit 1 when the oldest outstanding message is older.",
        )

    def run(self, options: dict[str, Any]) -> None:
        outbox_settings(self.database)  # an alias without an outbox needs no migration
        refuse_missing_migrations(self.database)
        found = standing(OutboxMessage.objects.using(self.database))
        topics = [_topic(row) for row in TopicState.objects.using(self.database).waiting()[:TOPICS]]
        holders = self._holders()
        if options["json"]:
            self.stdout.write(_json(self.database, found, topics, holders))
        else:
            self.stdout.write(_text(found, topics, holders))
        limit = options["fail_if_older"]
        if limit is not None and found.age is not None and found.age > limit:
            raise CommandError(
                f"The oldest outstanding message is {found.age:.0f} s old: more than {limit:g} s."
            )

    def _holders(self) -> list[Holder]:
        """The registry's rows of the engines that have ever worked."""
        connection = connections[self.database]
        rows = (registry.holder(connection, cls.resource) for cls in (Sweeper, Archiver))
        return [row for row in rows if row is not None]


def _topic(row: TopicState) -> dict[str, str]:
    state = "no route" if row.unroutable_since is not None else row.breaker
    if row.paused_at is not None:
        state = f"paused by {row.paused_by}"
    return {"topic": row.topic, "state": state, "reason": " ".join(row.last_error.split())}


def _json(
    database: str, found: Standing, topics: list[dict[str, str]], holders: list[Holder]
) -> str:
    told = {
        "database": database,
        **found.counts,
        "capped": sorted(found.capped),
        "oldest": found.oldest,
        "oldest_age": found.age,
        "topics": topics,
        "locks": [asdict(row) for row in holders],
    }
    return json.dumps(told, cls=DjangoJSONEncoder)


def _text(found: Standing, topics: list[dict[str, str]], holders: list[Holder]) -> str:
    counts = [(words, _number(found, kind)) for kind, words in _WORDS.items()]
    parts = [table([*counts, ("age of the oldest outstanding", _age(found))])]
    if topics:
        cells = [(t["topic"], t["state"], t["reason"]) for t in topics]
        parts.append(table([("TOPIC", "STATE", "REASON"), *cells]))
    if holders:
        parts.append(holders_table(holders))
    return "\n\n".join(parts)


def _number(found: Standing, kind: str) -> str:
    return f"{LIMIT:,}+" if kind in found.capped else f"{found.counts[kind]:,}"


def _age(found: Standing) -> str:
    if found.age is None:
        return "-"
    at_least = "at least " if found.capped - {"dead"} else ""
    return f"{at_least}{found.age:.0f} s"
