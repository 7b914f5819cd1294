"""What a person hears in the log of what became of a page."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django_outbox_lock.querysets.messages import DEAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_outbox_lock.breaker import Circuit
    from django_outbox_lock.engines.results import Record
    from django_outbox_lock.querysets.messages import Change

logger = logging.getLogger("django_outbox_lock.engines")


# Ids that are remembered at most, some megabytes of them.
REMEMBERED = 100_000


class Notices:
    """Tells of a trouble when it begins and when it is over; of a page at most one line a kind."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._waiting: set[str] = set()

    def load(self, circuits: Iterable[Circuit]) -> None:
        """Forget the topics that another process has found to be well again."""
        self._waiting &= {circuit.topic for circuit in circuits if circuit.parks}

    def tell(self, record: Record) -> None:
        """Tell of a record that has been written."""
        failed = [change for change in record.changes if change.error is not None]
        self._tell_dead([change for change in failed if change.state == DEAD])
        self._tell_retried([change for change in failed if change.state != DEAD])
        for circuit in record.circuits:
            self._tell_topic(circuit)

    def _tell_dead(self, changes: list[Change]) -> None:
        if changes:
            first = changes[0]
            what = (self._using, len(changes), first.id, first.dead_reason, _line(first.error))
            logger.warning("Dead messages on %r: %d. The first, number %d: %s: %s", *what)

    def _tell_retried(self, changes: list[Change]) -> None:
        if changes:
            what = (self._using, len(changes), changes[0].id, _line(changes[0].error))
            logger.info("Messages to be tried again on %r: %d. The first, number %d: %s", *what)

    def _tell_topic(self, circuit: Circuit) -> None:
        topic = circuit.topic
        if circuit.parks and topic not in self._waiting:
            self._waiting.add(topic)
            what = (topic, self._using, _line(circuit.last_error))
            logger.warning("The messages of topic %r on %r wait: %s", *what)
        elif not circuit.parks and topic in self._waiting:
            self._waiting.remove(topic)
            logger.warning("The messages of topic %r on %r go on.", topic, self._using)


class Told:
    """The messages of which a person has heard: one that stays is met again at every look."""

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def new(self, ids: Iterable[int]) -> list[int]:
        """Those of the ids that are named for the first time."""
        new = [id_ for id_ in ids if id_ not in self._ids]
        if len(self._ids) + len(new) > REMEMBERED:
            self._ids.clear()
        self._ids.update(new)
        return new


def _line(error: str | None) -> str:
    return " ".join((error or "").split())
