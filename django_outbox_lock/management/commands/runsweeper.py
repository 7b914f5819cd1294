"""``manage.py runsweeper``: send the messages of an outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.management.commands._engine import EngineCommand
from django_outbox_lock.models import OutboxMessage

if TYPE_CHECKING:
    from django_outbox_lock.engines.base import Engine
    from django_outbox_lock.engines.sweeper import Totals


class Command(EngineCommand):
    """Start it in as many replicas as you like: one of them sends, the others stand by."""

    help = (
        "Sends the messages of the outbox. Any number of processes may run: a lock settles which "
        "of them sends. SIGTERM or Ctrl-C finishes what is in flight and exits; a second one "
        "exits at once."
    )
    engine: ClassVar[type[Engine]] = Sweeper

    def prepare(self, engine: Engine) -> None:
        """Refuse a database that cannot be written to before anything waits for it."""
        assert isinstance(engine, Sweeper)
        OutboxMessage.objects.using(engine.using).writable()
        if self.stdout.isatty():
            engine.watch = self._rewrite
            self._rewrite(engine.totals)  # who has nothing to do shows that it runs

    def conclude(self, engine: Engine) -> None:
        assert isinstance(engine, Sweeper)
        self.tell("" if self.stdout.isatty() else str(engine.totals))

    def _rewrite(self, totals: Totals) -> None:
        """One line on a terminal, written over and over."""
        self.tell(f"\r{totals}", ending="")
