"""The registry of locks, read to be shown: never to decide who holds (that is ``fence``)."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_outbox_lock import keys, transactions
from django_outbox_lock.clock import SECOND, ServerTime, to_datetime
from django_outbox_lock.holder import Holder, LockState
from django_outbox_lock.models import Lock
from django_outbox_lock.polling import in_background

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("django_outbox_lock.locks")

# Seconds that an error waits for the name of the holder.
PATIENCE = 1.0

_COLUMNS = (
    "resource",
    "token",
    "owner",
    "backend",
    "host",
    "pid",
    "application",
    "session_id",
    "lease",
    "acquired_at",
    "expires_at",
    "last_seen_at",
)


@dataclass(frozen=True, slots=True)
class Live:
    """A lock as the store itself shows it, whoever holds it."""

    store_key: str
    session_id: str = ""
    host: str = ""
    application: str = ""
    pid: int | None = None

    @classmethod
    def of(cls, store_key: str, card: Mapping[str, object]) -> Live:
        """By what the store keeps of the holder; what is no such thing is left out."""
        host, application, pid = (card.get(name) for name in ("host", "application", "pid"))
        number = int(pid) if isinstance(pid, int | str) and str(pid).isdecimal() else None
        return cls(store_key, "", str(host or ""), str(application or ""), number)


@dataclass(frozen=True, slots=True)
class View:
    """How one backend names things: ``arbiter`` is what it writes into the registry."""

    label: str
    store_key: Callable[[str], str]
    arbiter: Callable[[str], str]


def holders(connection: BaseDatabaseWrapper) -> list[Holder]:
    """Every resource of the registry on the connection's alias, by name."""
    rows = Lock.objects.using(connection.alias).order_by("resource")
    return [_holder(row) for row in rows.values(*_COLUMNS, now=ServerTime())]


def holder(connection: BaseDatabaseWrapper, resource: str) -> Holder | None:
    """The registry's row of one resource; None when nobody ever held it."""
    rows = Lock.objects.using(connection.alias).filter(pk=keys.resource_id(resource))
    row = rows.values(*_COLUMNS, now=ServerTime()).first()
    return _holder(row) if row else None


def look_up(using: str, resource: str, *, aside: bool = False) -> Holder | None:
    """``holder`` for the text of an error; None when nobody could tell within ``PATIENCE``.

    Raises nothing. Inside a transaction of the caller's, and with ``aside`` always, another thread
    asks on a connection of its own: neither an error nor a server that does not answer harms the
    caller. A coroutine is not kept waiting: it is told None.
    """
    if _in_event_loop():
        return None
    connection = connections[using]
    # What a test case has written, and what is in memory, no other connection sees.
    in_test_case = connection.in_atomic_block and not transactions.in_transaction(using)
    in_memory = getattr(connection, "is_in_memory_db", bool)()
    if in_test_case or in_memory or not (aside or transactions.in_transaction(using)):
        return _holder_or_none(using, resource)
    return _ask_aside(using, resource)


def join(rows: Iterable[Holder], live: Iterable[Live] | None, view: View) -> list[Holder]:
    """The registry's rows beside what the store shows; None: the store could not be looked at.

    What the store shows and no row accounts for is appended as foreign.
    """
    if live is None:
        return [_unverified(row) for row in rows]
    unclaimed = {lock.store_key: lock for lock in live}
    joined = [_verified(row, unclaimed, view) for row in rows]
    return joined + [_foreign(lock, view) for lock in unclaimed.values()]


def _ask_aside(using: str, resource: str) -> Holder | None:
    answers: list[Holder | None] = []
    answered = threading.Event()

    def ask() -> None:
        answers.append(_holder_or_none(using, resource))
        answered.set()

    asked = in_background(ask, "outbox-lock-look-up", or_here=False)
    return answers[0] if asked and answered.wait(PATIENCE) else None


def _holder_or_none(using: str, resource: str) -> Holder | None:
    try:
        return holder(connections[using], resource)
    except Exception as error:  # noqa: BLE001 (an error is to be told, and must not be replaced)
        logger.debug("%s: the holder could not be looked up: %s", resource, error)
        return None


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _verified(row: Holder, unclaimed: dict[str, Live], view: View) -> Holder:
    if row.state is not LockState.HELD:
        return row
    if row.backend != view.arbiter(row.resource):
        # Another backend's: with a lease the row itself tells, without one only its store could.
        return row if row.expires_at else _unverified(row)
    key = view.store_key(row.resource)
    seen = unclaimed.get(key)
    if seen is None or seen.session_id not in {"", row.session_id}:
        return replace(row, state=LockState.STALE)
    del unclaimed[key]
    return row


def _unverified(row: Holder) -> Holder:
    held = row.state is LockState.HELD
    return replace(row, state=LockState.UNVERIFIED) if held else row


def _foreign(lock: Live, view: View) -> Holder:
    return Holder(
        resource=lock.store_key,
        state=LockState.FOREIGN,
        backend=view.label,
        host=lock.host,
        pid=lock.pid,
        application=lock.application,
        session_id=lock.session_id,
    )


def _holder(row: dict[str, Any]) -> Holder:
    return Holder(
        resource=row["resource"],
        state=_state(row),
        token=row["token"],
        lock_id=row["owner"],
        backend=row["backend"],
        host=row["host"],
        pid=row["pid"],
        application=row["application"],
        session_id=row["session_id"],
        lease=None if row["lease"] is None else row["lease"] / SECOND,
        acquired_at=_moment(row["acquired_at"]),
        expires_at=_moment(row["expires_at"]),
        last_seen_at=_moment(row["last_seen_at"]),
    )


def _state(row: dict[str, Any]) -> LockState:
    if row["owner"] is None:
        return LockState.FREE
    if row["expires_at"] is None:
        return LockState.HELD
    # Two leases ahead is more than any holder asks for: the server's clock has stepped back.
    passed = not row["now"] < row["expires_at"] <= row["now"] + 2 * row["lease"]
    return LockState.EXPIRED if passed else LockState.HELD


def _moment(microseconds: int | None) -> dt.datetime | None:
    return None if microseconds is None else to_datetime(microseconds)
