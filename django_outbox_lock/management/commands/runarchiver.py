"""``manage.py runarchiver``: move dispatched messages out of the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.management.commands._engine import EngineCommand

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django_outbox_lock.engines.base import Engine


class Command(EngineCommand):
    """Start it in as many replicas as you like: one of them archives, the others stand by."""

    help = (
        "Archives messages that were dispatched long enough ago and prunes dead letters and the "
        "processing log by their own retention. Any number of processes may run: a lock settles "
        "which of them works. SIGTERM or Ctrl-C finishes the batch in flight and exits."
    )
    engine: ClassVar[type[Engine]] = Archiver

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="Tell what would be done; change nothing."
        )

    def start(self, engine: Engine, options: dict[str, Any]) -> None:
        assert isinstance(engine, Archiver)
        if options["dry_run"]:
            self.stdout.write(f"Would be done now: {engine.survey()}")
            return
        super().start(engine, options)
        self.tell(str(engine.tally))
