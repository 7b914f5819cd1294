"""Who wants, has and had a resource: the values of the lock layer."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt


class LockState(enum.StrEnum):
    """What the registry and the live view of the store say together."""

    HELD = "held"  # both say so
    FREE = "free"  # nobody holds it
    EXPIRED = "expired"  # the lease has passed and nobody has taken over yet
    STALE = "stale"  # the registry says held, the store does not
    FOREIGN = "foreign"  # the store says held, the registry knows nothing of it
    UNVERIFIED = "not verified"  # the registry says held, the store could not be asked


@dataclass(frozen=True, slots=True)
class Claim:
    """What a backend writes into the registry when it has, or wants, a resource.

    ``lease`` is in seconds. ``expires``: the row is to carry the end of the lease. ``arbitrated``:
    the store has already shut out every other process that uses the same backend, so that an owner
    that such a process left behind is history.
    """

    resource: str
    lock_id: str
    backend: str
    lease: float
    expires: bool
    arbitrated: bool
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What proves a holder to the fence."""

    resource: str
    lock_id: str
    token: int


@dataclass(frozen=True, slots=True)
class Holder:
    """One resource as seen at one moment. Times are as Django shows them; None where unknown.

    ``lease`` is in seconds. ``expires_at`` is None for a lock that lives as long as a database
    session ("session-bound"). For a free resource the identity is that of the last holder.
    """

    resource: str
    state: LockState
    token: int = 0
    lock_id: str | None = None
    backend: str = ""
    host: str = ""
    pid: int | None = None
    application: str = ""
    session_id: str = ""
    lease: float | None = None
    acquired_at: dt.datetime | None = None
    expires_at: dt.datetime | None = None
    last_seen_at: dt.datetime | None = None

    def __str__(self) -> str:
        """One line for errors and logs: who, since when, until when."""
        who = f"{self.application or 'a process'} (pid {self.pid}) on {self.host or 'unknown host'}"
        since = f" since {self.acquired_at:%Y-%m-%d %H:%M:%S}" if self.acquired_at else ""
        until = f" until {self.expires_at:%H:%M:%S}" if self.expires_at else ", session-bound"
        return f"{who}{since}{until}, token {self.token}"


def after_loss(now: Holder | None, lock_id: str) -> str:
    """What to add to the news that ``lock_id`` has lost its resource: whose it is ``now``."""
    if now is None:
        return ""
    if now.lock_id is None:
        return " Nobody holds it now."
    if now.lock_id == lock_id:
        return f" Nobody has taken it over yet; it was held by {now}."
    return f" It is held by {now}."
