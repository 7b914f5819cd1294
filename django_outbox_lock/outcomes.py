"""What became of one message at its publisher."""

from __future__ import annotations

from dataclasses import dataclass


class Outcome:
    """Root of the three answers that a publisher gives for a message."""


@dataclass(frozen=True, slots=True)
class Sent(Outcome):
    """The broker has confirmed that it keeps the message."""


class Retry(Outcome, Exception):
    """Not now: try again, after ``after`` seconds if given, else by the back-off.

    A publisher returns it; a handler function may raise it.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Rejected(Outcome, Exception):
    """Never: the message is dead at once. Returned by a publisher or raised by a handler."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
