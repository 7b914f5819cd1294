"""When to try again: pure arithmetic."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays in seconds, from ``base`` on, doubled each time, at most ``cap``.

    ``jitter`` is the share of a delay that is drawn by chance, so that many messages that failed
    together do not come back together; a delay is never shortened by more than that share.
    """

    base: float = 1.0
    cap: float = 3600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.base <= self.cap:
            raise ValueError(f"base must be above 0 and at most cap ({self.cap}), not {self.base}.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, not {self.jitter}.")

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the ``attempt``-th failure, which counts from 1."""
        full = min(self.cap, self.base * 2.0 ** min(attempt - 1, 60))
        return full * (1 - self.jitter * random.random())  # noqa: S311 (no secret)
