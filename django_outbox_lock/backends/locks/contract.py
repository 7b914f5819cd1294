"""The part of a lock backend that each room fills in, and the flags by which rooms differ."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from django.db import connections

from django_outbox_lock import fence, keys
from django_outbox_lock.checked import at_least

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.checks import CheckMessage

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.holder import Holder
    from django_outbox_lock.registry import Live


@dataclass(frozen=True, slots=True)
class Grant:
    """A room's answer to a take that succeeded. ``session_id`` is for session locks."""

    token: int
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was found out about the store: ``reason`` says why it must not be used.

    Of a store that is usable it says what is to be warned of.
    """

    usable: bool
    reason: str = ""


class Room(abc.ABC):
    """One store: how it takes, proves and gives back a lock.

    ``alias`` is the database alias of the outbox: its registry issues the tokens. ``namespace``
    separates applications that share the store, ``lease`` is in seconds, ``session_using`` names
    the alias of the same database through which the lock's own session goes (past a pooler, say).
    """

    label: ClassVar[str]
    vendor: ClassVar[str | None] = None
    """``connection.vendor`` of the only databases that it works with; None: any."""
    session_bound: ClassVar[bool] = False
    inside_atomic: ClassVar[bool] = True
    across_processes: ClassVar[bool] = True
    minimum_lease: ClassVar[float] = 1.0
    silence: ClassVar[float] = 1.0
    """After how many leases the lock of a silent process is free at the latest."""
    first_proof: ClassVar[float] = math.inf
    """Seconds from a take to its first proof, where a third of the lease would be longer."""

    def __init__(
        self,
        alias: str,
        *,
        namespace: str = "",
        lease: float = 60.0,
        session_using: str | None = None,
    ) -> None:
        if not isinstance(namespace, str):
            raise TypeError(f"namespace must be a str, not {namespace!r}")
        if session_using is not None and session_using not in connections:
            raise ValueError(f"session_using names no database alias: {session_using!r}")
        self.alias = alias
        self.lease = at_least("lease", lease, self.minimum_lease)
        self.session_using = session_using or alias
        self._given_namespace = namespace
        self.reset()

    @abc.abstractmethod
    def reset(self) -> None:
        """Start without any handle, as a forked child must."""

    def store_key(self, resource: str) -> str:
        """The resource's key in the store, as text."""
        return keys.store_key(self.namespace, resource)

    @abc.abstractmethod
    def take(self, resource: str, lock_id: str) -> Grant | None:
        """Try once to take the resource and to bump its token; None when it is busy.

        Raises ``LockUnavailable`` when the store could not be asked.
        """

    def undo_take(self, resource: str, lock_id: str) -> None:
        """Called when a take was interrupted: who asked never got the answer."""

    @abc.abstractmethod
    def prove_once(self, handle: LockHandle) -> bool:
        """Ask the store, in one go, whether the handle holds, and renew its lease if it has one.

        False means definitely not; an exception means that nobody knows.
        """

    @abc.abstractmethod
    def drop(self, handle: LockHandle) -> bool:
        """Give the lock back in the store; tells whether it was held."""

    def abandon(self, handle: LockHandle) -> None:
        """Leave a lost lock behind so that nobody waits for this process longer than needed.

        Must not wait for long: the thread that watches the deadlines may be the one that calls.
        """

    @abc.abstractmethod
    def live(self) -> Iterable[Live]:
        """What the store shows of its locks. Raises ``LockUnavailable`` when it may not be seen."""

    def end_by_force(self, resource: str, holder: Holder) -> None:
        """End the holder in the store; the registry has fenced it off already."""

    def idle(self) -> None:
        """Let go of what is not needed while nothing is held.

        Called on the thread that renews, when that was so for a while, and by an engine after a
        trouble: a session that begins anew sees the database as it is now.
        """

    def adopted(self, handle: LockHandle) -> None:
        """Called when the handle is looked after: what happened since the take is told now."""

    def probe(self) -> ProbeResult:
        """Find out with two sessions whether the store keeps what it promises."""
        return ProbeResult(usable=True)

    def check(self) -> list[CheckMessage]:
        """System checks of this backend that need no connection."""
        return []

    def provision(self) -> str:
        """Make what the store needs and is not there yet; says what was done."""
        return f"The {self.label} lock needs nothing besides the tables of this app."

    def missing(self) -> str | None:
        """A sentence on what the store needs and is not there; None when nothing is missing."""
        return None

    # The same for all rooms.

    @classmethod
    def misfit(cls, alias: str) -> str:
        """Why this backend cannot work on the database of ``alias``; empty if it may."""
        vendor = connections[alias].vendor
        if cls.vendor in {None, vendor}:
            return ""
        return (
            f"{cls.__name__} works with {cls.vendor!r} only, and the database {alias!r} is "
            f"{vendor!r}. Without BACKEND the database's own lock is taken."
        )

    @property
    def namespace(self) -> str:
        """What separates this application's locks in the store."""
        return self._given_namespace

    def arbiter(self, resource: str) -> str:
        """What stands in the registry's ``backend`` column: who arbitrates, under which key."""
        return f"{self.label}:{self.store_key(resource)}"

    def claim(self, resource: str, lock_id: str, session_id: str = "") -> fence.Claim:
        """The claim that a room hands to ``fence.bump``."""
        return fence.Claim(
            resource=resource,
            lock_id=lock_id,
            backend=self.arbiter(resource),
            lease=self.lease,
            expires=not self.session_bound,
            arbitrated=True,
            session_id=session_id,
        )
