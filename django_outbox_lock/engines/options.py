"""The sweeper's options, checked: each error names its option."""

from __future__ import annotations

from dataclasses import dataclass

from django_outbox_lock.breaker import Breaker
from django_outbox_lock.checked import at_least, count, positive
from django_outbox_lock.retry import Backoff

MEGABYTE = 1024 * 1024
# A statement that carries the ids of a page stays well below what every server takes.
MAX_BATCH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweeperOptions:
    """Times are in seconds, sizes in bytes; see ``docs/sweeper.md``."""

    batch_size: int = 1000
    batch_bytes: int = 16 * MEGABYTE
    page_seconds: float = 30.0
    shards: int = 1
    max_attempts: int = 10
    send_timeout: float = 30.0
    max_hanging: int = 4
    unroutable_after: float = 3600.0
    backoff_base: float = 1.0
    backoff_cap: float = 3600.0
    backoff_jitter: float = 0.5
    breaker_threshold: int = 5
    breaker_cooldown: float = 5.0
    breaker_cap: float = 300.0

    def __post_init__(self) -> None:
        count("batch_size", self.batch_size, most=MAX_BATCH)
        count("batch_bytes", self.batch_bytes)
        count("max_attempts", self.max_attempts)
        count("max_hanging", self.max_hanging)
        count("breaker_threshold", self.breaker_threshold)
        if self.shards != 1:
            raise ValueError(f"shards: only 1 is supported, not {self.shards!r}.")
        at_least("unroutable_after", self.unroutable_after, 0.0)
        for name in ("page_seconds", "send_timeout"):
            positive(name, getattr(self, name))
        for name in ("backoff", "breaker"):
            self._check_growth(name, "base" if name == "backoff" else "cooldown")
        if not 0 <= at_least("backoff_jitter", self.backoff_jitter, 0.0) <= 1:
            raise ValueError(f"backoff_jitter must be at most 1, not {self.backoff_jitter!r}.")

    def _check_growth(self, name: str, first: str) -> None:
        least = positive(f"{name}_{first}", getattr(self, f"{name}_{first}"))
        if positive(f"{name}_cap", getattr(self, f"{name}_cap")) < least:
            raise ValueError(f"{name}_cap must be at least {name}_{first} ({least:g}).")

    @property
    def inline_bytes(self) -> int:
        """The longest body that comes with its row, so that a page is bounded by batch_bytes."""
        return self.batch_bytes // self.batch_size

    def backoff(self) -> Backoff:
        """When a message is tried again."""
        return Backoff(self.backoff_base, self.backoff_cap, self.backoff_jitter)

    def breaker(self) -> Breaker:
        """When a topic is left alone."""
        return Breaker(
            threshold=self.breaker_threshold,
            cooldown=self.breaker_cooldown,
            cap=self.breaker_cap,
        )
