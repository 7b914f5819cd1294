"""A bound on how long the server keeps a session that says nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

# PostgreSQL bounds a silent transaction inside it (see ``fence``); where the session itself is to
# be bounded, one statement keeps the old values and sets the new ones. Safe updates would refuse
# every UPDATE that reads its values from JSON: that is a table without a key.
_BOUND = {
    "mysql": (
        (
            "SET @outbox_wait_timeout = @@SESSION.wait_timeout, SESSION wait_timeout = %s, "
            "@outbox_safe_updates = @@SESSION.sql_safe_updates, SESSION sql_safe_updates = 0"
        ),
        (
            "SET SESSION wait_timeout = @outbox_wait_timeout, "
            "SESSION sql_safe_updates = @outbox_safe_updates"
        ),
    )
}


def bounds_silence(connection: BaseDatabaseWrapper) -> bool:
    """Whether the server can end a session because it says nothing."""
    return connection.vendor in _BOUND


@contextmanager
def silence_bound(connection: BaseDatabaseWrapper, seconds: float | None) -> Iterator[None]:
    """Have the server end this session when it is silent for ``seconds``, where it can.

    So a process that is frozen inside the block frees its row locks. Nothing for None, and where
    the server has no such limit.
    """
    bound = _BOUND.get(connection.vendor)
    if bound is None or seconds is None:
        yield
        return
    _execute(connection, bound[0], [max(1, int(seconds))])
    try:
        yield
    except BaseException:
        _restore_after_error(connection, bound[1])
        raise
    _execute(connection, bound[1])


def _restore_after_error(connection: BaseDatabaseWrapper, sql: str) -> None:
    try:
        _execute(connection, sql)
    except Error:
        connection.close()  # it is dead, or unfit for its next user


def _execute(connection: BaseDatabaseWrapper, sql: str, params: list[int] | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
