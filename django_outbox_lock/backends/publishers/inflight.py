"""Confirmations arrive on a client library's thread; outcomes leave in the order given."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.exceptions import TransportDown
    from django_outbox_lock.outcomes import Outcome


class Batch:
    """The outcomes of one call, settled by one thread and iterated by another."""

    def __init__(self, size: int) -> None:
        self.cancelled = False
        self._outcomes: list[Outcome | None] = [None] * size
        self._failure: TransportDown | None = None
        self._changed = threading.Condition()

    # The client library's thread

    def settle(self, index: int, outcome: Outcome) -> None:
        """What became of the message at ``index``."""
        with self._changed:
            self._outcomes[index] = outcome
            self._changed.notify()

    def fail(self, failure: TransportDown) -> None:
        """Nothing more will be known: the iteration raises ``failure`` at the first gap."""
        with self._changed:
            self._failure = failure
            self._changed.notify()

    # The caller's thread

    def outcomes(self, timeout: float, give_up: Callable[[], TransportDown]) -> Iterator[Outcome]:
        """Yield the outcomes in order; raise what ``fail`` was given.

        Where the next one is not known after ``timeout`` seconds, raise ``give_up()``.
        """
        position = 0
        while position < len(self._outcomes):
            known = self._wait_for(position, timeout)
            if not known:
                raise self._failure or give_up()
            yield from known
            position += len(known)

    def _wait_for(self, position: int, timeout: float) -> list[Outcome]:
        """The outcomes from ``position`` to the next gap; none after a failure or ``timeout``."""
        with self._changed:
            self._changed.wait_for(lambda: self._decided(position), timeout)
            rest = itertools.islice(self._outcomes, position, None)
            return [*itertools.takewhile(lambda outcome: outcome is not None, rest)]  # type: ignore[list-item]

    def _decided(self, position: int) -> bool:
        return self._outcomes[position] is not None or self._failure is not None
