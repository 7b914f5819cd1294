"""The registry row of a resource: issuer of fencing tokens, and the fence itself.

Every statement is one conditional write, judged by its row count. A plain read would prove
nothing: between the read and the commit another holder may have taken over, and under snapshot
isolation the read may be of an old version. The UPDATE takes the row's lock, so a successor's
bump waits for the commit, and whoever comes after it finds another token.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, connections, transaction
from django.db.models import BigIntegerField, F, Value

from django_outbox_lock import dberrors, fence_sql, keys
from django_outbox_lock.clock import ServerTime
from django_outbox_lock.exceptions import LockLost
from django_outbox_lock.holder import Claim, Ticket
from django_outbox_lock.models import Lock
from django_outbox_lock.querysets import sessions
from django_outbox_lock.waits import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = [
    "Claim",
    "Ticket",
    "bounds_idle",
    "bump",
    "check",
    "current_token",
    "force",
    "free",
    "freeing",
    "held",
    "lift",
    "taking",
    "touch",
]

# More acquisitions than any resource sees between two backups.
LIFT = 1 << 32


def bump(connection: BaseDatabaseWrapper, claim: Claim, expected: int | None = None) -> int | None:
    """Make the claimant the owner and return its new token, or None when that is refused.

    Refused means: the row has another owner whose lease has not passed, or (``expected``) the
    token is no longer the one that the claimant saw. Outside a transaction this is durable at
    once. Waits for the row as long as the connection's lock time-out lets it.
    """
    token = _bump(connection, claim, expected)
    if token is None and _insert(connection, claim.resource):
        token = _bump(connection, claim, expected)
    return token


def taking(connection: BaseDatabaseWrapper, claim: Claim) -> tuple[str, list[Any]]:
    """The statement of ``bump`` that mostly does, for a room that can do more in one go."""
    return next(fence_sql.statements(connection).takes(claim, None))


def touch(connection: BaseDatabaseWrapper, ticket: Ticket, lease: float | None = None) -> bool:
    """Note that the holder was seen and, with ``lease`` (seconds), let its lease run anew.

    False when the row is no longer the holder's.
    """
    sql = fence_sql.statements(connection)
    if lease is None:
        return _execute(connection, sql.touch, _proof(ticket)) == 1
    return _execute(connection, sql.extend, [fence_sql.microseconds(lease), *_proof(ticket)]) == 1


def free(connection: BaseDatabaseWrapper, ticket: Ticket) -> bool:
    """Let the resource go; who held it stays in the row. False when it was not the holder's.

    In a transaction of its own it need not wait for the disk, where the server can do without: if
    a crash undoes it, the row has an owner whom the next holder finds to be gone.
    """
    return _execute(connection, *freeing(connection, ticket)) == 1


def freeing(connection: BaseDatabaseWrapper, ticket: Ticket) -> tuple[str, list[Any]]:
    """The statement of ``free`` with its parameters, for a room that can do more in one go."""
    sql = fence_sql.statements(connection)
    statement = sql.free_soon if connection.autocommit else sql.free
    return statement, _proof(ticket)


def force(connection: BaseDatabaseWrapper, resource: str, token: int, forced_by: str) -> bool:
    """Fence the holder off and free the row, if its token is still ``token``."""
    params = [forced_by[:150], keys.resource_id(resource), token]
    return _execute(connection, fence_sql.statements(connection).force, params) == 1


def lift(using: str, forced_by: str) -> int:
    """After a restore: raise every token above all that the lost commits may have issued.

    Whoever holds is fenced off. Returns the number of resources.
    """
    by = Value(LIFT, BigIntegerField())  # else psycopg may bind 32 bits of it: none of them
    return Lock.objects.using(using).update(
        token=F("token") + by, owner=None, forced_by=forced_by[:150], forced_at=ServerTime()
    )


def current_token(connection: BaseDatabaseWrapper, resource: str) -> int:
    """The last token that was issued for the resource; 0 when there was none."""
    with connection.cursor() as cursor:
        cursor.execute(fence_sql.statements(connection).token, [keys.resource_id(resource)])
        row = cursor.fetchone()
    return row[0] if row else 0


def check(ticket: Ticket, *, using: str, idle_limit: float | None = None) -> None:
    """Prove the holder inside the current transaction; raises ``LockLost``.

    From here until the commit the row is locked: nobody else can become the holder, and a renewal
    waits. With ``idle_limit`` (seconds) a server that limits transactions ends this one when its
    process is frozen before the commit.
    """
    connection = connections[using]
    sql = fence_sql.statements(connection)
    if idle_limit is not None and sql.bounded_touch:
        params = [f"{milliseconds(idle_limit)}", *_proof(ticket)]
        held = _execute(connection, sql.bounded_touch, params)
    else:
        held = _execute(connection, sql.touch, _proof(ticket))
    if held != 1:
        raise LockLost(
            f"{ticket.resource}: token {ticket.token} is no longer the holder's.",
            resource=ticket.resource,
            token=ticket.token,
        )


@contextmanager
def held(ticket: Ticket, *, using: str, idle_limit: float | None = None) -> Iterator[None]:
    """A transaction that begins with the fence: all of it commits as the holder, or none of it.

    ``idle_limit`` is that of ``check``; on a server that limits whole sessions only, the session
    has it for the transaction.
    """
    with sessions.silence_bound(connections[using], idle_limit), transaction.atomic(using=using):
        check(ticket, using=using, idle_limit=idle_limit)
        yield


def bounds_idle(connection: BaseDatabaseWrapper) -> bool:
    """Whether the server can end a transaction whose process is frozen."""
    return connection.vendor in fence_sql.IDLE_LIMIT or sessions.bounds_silence(connection)


def _bump(connection: BaseDatabaseWrapper, claim: Claim, expected: int | None) -> int | None:
    for statement, params in fence_sql.statements(connection).takes(claim, expected):
        token = _taken(connection, claim, statement, params)
        if token is not None:
            return token
    return None


def _taken(
    connection: BaseDatabaseWrapper, claim: Claim, statement: str, params: Sequence[Any]
) -> int | None:
    sql = fence_sql.statements(connection)
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        if sql.returning:
            rows = cursor.fetchall()
            return rows[0][0] if rows else None
        if cursor.rowcount != 1:
            return None
        if connection.vendor in fence_sql.LAST_ID:
            return int(cursor.lastrowid)
        cursor.execute(sql.own_token, [keys.resource_id(claim.resource), claim.lock_id])
        return int(cursor.fetchall()[0][0])


def _insert(connection: BaseDatabaseWrapper, resource: str) -> bool:
    """Make the resource's row; False when it was there."""
    savepoint = connection.savepoint()  # None outside a transaction
    try:
        params = [keys.resource_id(resource), resource]
        _execute(connection, fence_sql.statements(connection).insert, params)
    except IntegrityError as error:
        if savepoint is not None:
            connection.savepoint_rollback(savepoint)
        if not dberrors.is_duplicate_key(error):
            raise
        return False
    if savepoint is not None:
        connection.savepoint_commit(savepoint)
    return True


def _proof(ticket: Ticket) -> list[Any]:
    return [keys.resource_id(ticket.resource), ticket.token, ticket.lock_id]


def _execute(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)
