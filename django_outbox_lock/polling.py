"""Waiting for something that can only be tried again and again."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from django.db import connections

from django_outbox_lock.checked import at_least, positive, seconds
from django_outbox_lock.retry import Backoff
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

logger = logging.getLogger("django_outbox_lock.locks")

_PAUSES = Backoff(base=0.02, cap=1.0, jitter=0.5)


class Polling:
    """The pauses between tries until ``timeout`` seconds are over: growing, with jitter.

    Raises ``ValueError`` for a time-out below 0 or NaN, ``TypeError`` for one that is no number.
    """

    def __init__(self, timeout: float) -> None:
        seconds("timeout", timeout)
        self._begin = time.monotonic()
        self._end = self._begin + timeout
        self._tries = 0

    @property
    def waited(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return max(0.0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True when no time is left for another try."""
        return not self.left

    def pause(self) -> float:
        """Seconds to sleep before the next try."""
        self._tries += 1
        return min(self.left, _PAUSES.delay(self._tries))


def refuse_hold(minimum: float, maximum: float | None) -> None:
    """Raise ``ValueError`` unless these are seconds for which a lock can be held."""
    at_least("minimum_hold", minimum, 0)
    if maximum is not None and positive("maximum_hold", maximum) < minimum:
        raise ValueError(f"maximum_hold ({maximum:g} s) is below minimum_hold ({minimum:g} s).")


class HandOver(Generic[T]):
    """Takes a result from the thread that makes it to a coroutine that may be cancelled meanwhile.

    What nobody is there to take is given to ``dispose``, whoever comes last.
    """

    def __init__(self, make: Callable[[], T | None], dispose: Callable[[T], object]) -> None:
        self._make = make
        self._dispose = dispose
        self._mutex = threading.Lock()
        self._result: T | None = None
        self._abandoned = False

    def run(self) -> T | None:
        """Make the result, in the thread."""
        result = self._make()
        with self._mutex:
            self._result = result
            abandoned = self._abandoned
        if abandoned and result is not None:
            self._dispose(result)
            return None
        return result

    def abandon(self) -> None:
        """Nobody waits any more; returns at once."""
        with self._mutex:
            self._abandoned = True
            result = self._result
        if result is not None:
            in_background(lambda: self._dispose(result), "outbox-lock-dispose")


def in_background(function: Callable[[], object], name: str, *, or_here: bool = True) -> bool:
    """Run the function on a thread of its own, whose database connections are closed after it.

    Where none can be had, at a limit of the system or at the end of the interpreter, it is run
    ``or_here``, and what it raises is logged; False when it was not run.
    """

    def run() -> None:
        try:
            function()
        finally:
            connections.close_all()

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        logger.warning("%s has no thread of its own: %s", name, error)
        if or_here:
            try:
                function()
            except Exception:
                logger.exception("%s failed", name)
        return or_here
    return True
