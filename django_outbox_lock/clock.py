"""The server's clock as a number, and the conversions to and from it.

What is compared with a clock is a whole number of microseconds since 1970 UTC, computed by the
database server in the statement that compares, so that neither a replica's clock nor a time zone
nor the start of a transaction has a say.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from django.db import NotSupportedError
from django.db.models import BigIntegerField, Expression
from django.utils import timezone

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

Compiled = tuple[str, tuple[int, ...]]

SECOND = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class ServerTime(Expression):
    """Microseconds since 1970 UTC by the server's clock at the statement, plus ``offset``."""

    output_field = BigIntegerField()
    allowed_default = True

    def __init__(self, offset: int = 0) -> None:
        super().__init__()
        self.offset = offset

    @classmethod
    def sql(cls, connection: BaseDatabaseWrapper) -> str:
        """The server's clock in the dialect of the connection, without parameters."""
        as_vendor = getattr(cls(), f"as_{connection.vendor}", cls().as_sql)
        return str(as_vendor(None, connection)[0])

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> Compiled:
        raise NotSupportedError(f"No server clock is known for the database {connection.vendor!r}.")

    def _plus_offset(self, sql: str) -> Compiled:
        return (f"({sql} + %s)", (self.offset,)) if self.offset else (sql, ())

    def as_postgresql(self, compiler: Any, connection: Any) -> Compiled:
        # clock_timestamp, not now(): the latter stands still for a whole transaction.
        return self._plus_offset("CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS bigint)")

    def as_mysql(self, compiler: Any, connection: Any) -> Compiled:
        return self._plus_offset("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")

    def as_sqlite(self, compiler: Any, connection: Any) -> Compiled:
        # unixepoch('subsec') is NULL before SQLite 3.42; a lease compared with NULL never ends.
        sql = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
        return self._plus_offset(f"({sql})")

    def as_microsoft(self, compiler: Any, connection: Any) -> Compiled:
        return self._plus_offset("DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME())")

    def as_oracle(self, compiler: Any, connection: Any) -> Compiled:
        now = "CAST(SYS_EXTRACT_UTC(SYSTIMESTAMP) AS TIMESTAMP(6))"
        since = f"({now} - TIMESTAMP '1970-01-01 00:00:00')"
        seconds = " + ".join(
            f"EXTRACT({part} FROM {since}) * {size}"
            for part, size in (("DAY", 86400), ("HOUR", 3600), ("MINUTE", 60), ("SECOND", 1))
        )
        return self._plus_offset(f"ROUND(({seconds}) * 1000000)")

    # Vendors of their own whose dialect is PostgreSQL's or MySQL's.
    as_cockroachdb = as_postgresql
    as_yugabyte = as_postgresql
    as_tidb = as_mysql


def to_microseconds(moment: dt.datetime) -> int:
    """Microseconds since 1970 UTC; a naive moment is in Django's current time zone."""
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment)
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def to_datetime(microseconds: int) -> dt.datetime:
    """The moment as Django would show it: aware in UTC, or naive local with ``USE_TZ=False``."""
    moment = _EPOCH + dt.timedelta(microseconds=microseconds)
    return moment if _use_tz() else timezone.make_naive(moment)


def _use_tz() -> bool:
    return timezone.is_aware(timezone.now())
