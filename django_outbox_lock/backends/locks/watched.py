"""The side of a handle that the clock decides: until when it holds, and who is told of its end.

Nothing here asks a store. All that is compared is monotonic.
"""

from __future__ import annotations

import datetime as dt
import enum
import logging
import math
import threading
from typing import TYPE_CHECKING

from django.utils import timezone

from django_outbox_lock import checked
from django_outbox_lock.polling import in_background
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle

    Callback: TypeAlias = Callable[[LockHandle], object]

logger = logging.getLogger("django_outbox_lock.locks")

# The next proof is due when two thirds are left; with one third left, several tries have failed.
_SHARE_AT_RISK = 3


class State(enum.Enum):
    """What has become of a handle."""

    HELD = "held"
    RELEASED = "released"
    LOST = "lost"


class Times:
    """How long a handle holds: its deadline, and the limits that its user has set."""

    backend: BaseLockBackend

    def __init__(self, deadline: float) -> None:
        self.stalled_after: float | None = None
        self._deadline = deadline
        self._obtained_at = self._progress = time.monotonic()
        self._minimum_hold = 0.0
        self._maximum_hold = math.inf

    @property
    def deadline(self) -> float:
        """Monotonic time at which the lock counts as lost unless it is proved anew."""
        return self._deadline

    @property
    def remaining(self) -> float | None:
        """Seconds of the lease that are left, None for a session-bound lock."""
        if self.backend.session_bound:
            return None
        return max(0.0, self._deadline - time.monotonic())

    @property
    def expires_at(self) -> dt.datetime | None:
        """When the lease ends, to be shown; None for a session-bound lock."""
        remaining = self.remaining
        return None if remaining is None else timezone.now() + dt.timedelta(seconds=remaining)

    def progress(self) -> None:
        """Note that the work goes on (see ``expect_progress``)."""
        self._progress = time.monotonic()

    def expect_progress(self, within: float) -> None:
        """Give the lock up when ``progress`` was not called for ``within`` seconds."""
        self.stalled_after = within
        self.progress()

    @property
    def stalled(self) -> bool:
        """True when the work has shown no progress for longer than it was to."""
        limit = self.stalled_after
        return limit is not None and time.monotonic() - self._progress > limit

    def hold_at_least(self, seconds: float) -> None:
        """Let a release wait until the lock has been held for so many seconds.

        Raises ``ValueError`` for less than 0, and for what is no number of seconds.
        """
        self._minimum_hold = checked.at_least("seconds", seconds, 0)

    def hold_at_most(self, seconds: float) -> None:
        """Give the lock up, as lost, when it has been held for so many seconds.

        Raises ``ValueError`` unless that is more than 0.
        """
        self._maximum_hold = checked.positive("seconds", seconds)

    @property
    def _over_at(self) -> float:
        """When it ends, unless it is proved anew."""
        return min(self._deadline, self._obtained_at + self._maximum_hold)

    @property
    def _risk_from(self) -> float:
        """When it is high time to warn of the end."""
        lease, limit = self.backend.lease, self._maximum_hold
        unproved = self._deadline - lease / _SHARE_AT_RISK
        return min(unproved, self._obtained_at + limit - min(lease, limit) / _SHARE_AT_RISK)

    @property
    def _too_long(self) -> str:
        return f"it was held for the {self._maximum_hold:g} s that it may be held at most"

    @property
    def _too_early(self) -> float:
        """Seconds that a release has to wait."""
        return max(0.0, self._obtained_at + self._minimum_hold - time.monotonic())


class Callbacks:
    """Those who want to be told of one thing about a handle, each on a thread of its own."""

    def __init__(self) -> None:
        self.is_told = False
        self._callbacks: list[Callback] = []
        self._mutex = threading.Lock()

    def add(self, callback: Callback, handle: LockHandle) -> None:
        """Tell this one, too; at once if the others have been told."""
        checked.function("callback", callback)
        with self._mutex:
            self._callbacks.append(callback)
            is_told = self.is_told
        if is_told:
            _start(callback, handle)

    def tell(self, handle: LockHandle) -> bool:
        """Tell all of them, unless that was done since ``calm``; says whether it was not."""
        with self._mutex:
            if self.is_told:
                return False
            self.is_told = True
            callbacks = list(self._callbacks)
        for callback in callbacks:
            _start(callback, handle)
        return True

    def calm(self) -> None:
        """What was told is over, and can be told again."""
        with self._mutex:
            self.is_told = False


def _start(callback: Callback, handle: LockHandle) -> None:
    def call() -> None:
        try:
            callback(handle)
        except Exception:
            logger.exception("%s: the callback %r failed", handle.resource, callback)

    in_background(call, f"outbox-lock-callback-{handle.token}")
