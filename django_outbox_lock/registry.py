"""The registry of locks, read to be shown: never to decide who holds (that is ``fence``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_outbox_lock import keys
from django_outbox_lock.clock import SECOND, ServerTime, to_datetime
from django_outbox_lock.holder import Holder, LockState
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    import datetime as dt

    from django.db.backends.base.base import BaseDatabaseWrapper

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


def holders(connection: BaseDatabaseWrapper) -> list[Holder]:
    """Every resource of the registry on the connection's alias, by name."""
    rows = Lock.objects.using(connection.alias).order_by("resource")
    return [_holder(row) for row in rows.values(*_COLUMNS, now=ServerTime())]


def holder(connection: BaseDatabaseWrapper, resource: str) -> Holder | None:
    """The registry's row of one resource; None when nobody ever held it."""
    rows = Lock.objects.using(connection.alias).filter(pk=keys.resource_id(resource))
    row = rows.values(*_COLUMNS, now=ServerTime()).first()
    return _holder(row) if row else None


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
    if row["expires_at"] is not None and row["expires_at"] <= row["now"]:
        return LockState.EXPIRED
    return LockState.HELD


def _moment(microseconds: int | None) -> dt.datetime | None:
    return None if microseconds is None else to_datetime(microseconds)
