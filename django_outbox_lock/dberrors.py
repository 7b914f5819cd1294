"""What a database error means, by SQLSTATE or error number, never by the words of its message.

Words change with the server's language and version. Each driver keeps the code in a place of its
own; the functions below take any exception and look at it and at its causes, so that Django's
wrappers, the drivers' own errors and errors that an application raised ``from`` one are all known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from django.db import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Code = tuple[str, int | str | None]


def _of(**codes: Iterable[int | str | None]) -> frozenset[Code]:
    return frozenset((source, code) for source, numbers in codes.items() for code in numbers)


_DEADLOCK = _of(sqlstate=["40P01"], mysql=[1213], mssql=[1205], oracle=[60])
# 1020: MariaDB with innodb_snapshot_isolation. 517: SQLite's snapshot is older than a write.
_SERIALIZATION = _of(sqlstate=["40001"], mysql=[1020], mssql=[3960], oracle=[8177], sqlite=[517])
# SQLite: 5 is BUSY and 6 is LOCKED; the rest are their extended codes.
_LOCK_TIMEOUT = _of(
    sqlstate=["55P03"],
    mysql=[1205, 3572],
    mssql=[1222],
    oracle=[54, 30006],
    sqlite=[5, 6, 261, 262, 517, 518, 773],
)
_DUPLICATE_KEY = _of(
    sqlstate=["23505"],
    mysql=[1062, 1586],
    mssql=[2601, 2627],
    oracle=[1],
    sqlite=[1555, 2067, 2579],
)
# A shutdown, a time-out that ended the session; None and 0: the driver found the socket dead.
_CONNECTION_LOST = _of(
    sqlstate=["57P01", "57P02", "57P03", "57P05", "25P03", None],
    mysql=[0, 1053, 1927, 2002, 2003, 2006, 2013, 2055, 3169, 4031],
    mssql=[596, 6005],
    oracle=[28, 1012, 3113, 3114, 3135],
)
_TRANSACTION_ENDED = _of(mysql=[1213, 1020], mssql=[1205, 3960])
# A character that the column's or the database's character set does not have.
_NO_SUCH_CHARACTER = _of(sqlstate=["22P05", "22021"], mysql=[1366, 1977, 3854])
# What the driver and Django raise over a value that the server has sent and nobody can read. SQLite
# keeps whatever was written: a text that is not UTF-8 is no error of its own until it is read.
_REFUSED = (DataError, ValueError, TypeError, AttributeError, OverflowError)
_NO_TEXT = _of(sqlite=["no text"])
_ODBC_NATIVE = re.compile(r"\((\d+)\) \(SQL\w+\)")


def is_deadlock(error: BaseException) -> bool:
    """The server chose this transaction to end a deadlock."""
    return _has(error, _DEADLOCK)


def is_serialization_failure(error: BaseException) -> bool:
    """The transaction's snapshot cannot be kept: it must run again from its start."""
    return _has(error, _SERIALIZATION)


def is_lock_timeout(error: BaseException) -> bool:
    """The wait for somebody else's lock ran out (SQLite: the database is busy)."""
    return _has(error, _LOCK_TIMEOUT)


def is_transient(error: BaseException) -> bool:
    """Deadlock, serialization failure or lock time-out: the same work may succeed when repeated."""
    return _has(error, _DEADLOCK | _SERIALIZATION | _LOCK_TIMEOUT)


def is_duplicate_key(error: BaseException) -> bool:
    """A unique value is there already; other violated constraints do not count."""
    return _has(error, _DUPLICATE_KEY)


def is_connection_lost(error: BaseException) -> bool:
    """The session is gone or was never there: what became of the last statement is unknown."""
    return _has(error, _CONNECTION_LOST) or any(
        source in {"sqlstate", "odbc"} and str(code).startswith("08")
        for source, code in _codes(error)
    )


def is_undecodable(error: BaseException) -> bool:
    """A value was read that is damaged; the connection and the other rows are well."""
    return isinstance(error, _REFUSED) or _has(error, _NO_TEXT)


def is_unstorable_text(error: BaseException) -> bool:
    """A text has a character that the table cannot hold: a database that is not in UTF-8."""
    return _has(error, _NO_SUCH_CHARACTER)


def ends_transaction(error: BaseException) -> bool:
    """The server rolled the whole transaction back, its savepoints too.

    What is written afterwards on that connection would be committed without what came before.
    """
    return _has(error, _TRANSACTION_ENDED)


def _has(error: BaseException, codes: frozenset[Code]) -> bool:
    return not codes.isdisjoint(_codes(error))


def _codes(error: BaseException) -> Iterator[Code]:
    cause: BaseException | None = error
    while cause is not None:
        read = _READERS.get(type(cause).__module__.partition(".")[0])
        if read is not None:
            yield from read(cause)
        cause = cause.__cause__


def _psycopg(error: BaseException) -> Iterator[Code]:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    # A wrong call (ProgrammingError) has no SQLSTATE either, and the connection lives. Time-outs
    # of the driver and of its pool are classes below these two.
    lost = {"OperationalError", "InterfaceError"}.intersection(
        c.__name__ for c in type(error).mro()
    )
    if state or lost:
        yield "sqlstate", state


def _mysql(error: BaseException) -> Iterator[Code]:
    if error.args and isinstance(error.args[0], int):
        yield "mysql", error.args[0]


def _sqlite(error: BaseException) -> Iterator[Code]:
    code = getattr(error, "sqlite_errorcode", None)
    # The one operational error that the module raises by itself has no code of the library's.
    told_by_module = code is None and type(error).__name__ == "OperationalError"
    yield "sqlite", "no text" if told_by_module else code


def _odbc(error: BaseException) -> Iterator[Code]:
    # ODBC maps many server errors to one SQLSTATE; pyodbc puts the server's number into a fixed
    # place of its text: "... (1205) (SQLExecDirectW)".
    yield "odbc", str(error.args[0]) if error.args else None
    for text in error.args[1:]:
        if found := _ODBC_NATIVE.search(str(text)):
            yield "mssql", int(found[1])


def _oracle(error: BaseException) -> Iterator[Code]:
    for detail in error.args[:1]:
        yield "oracle", getattr(detail, "code", None)


_READERS: dict[str, Callable[[BaseException], Iterator[Code]]] = {
    "psycopg": _psycopg,
    "psycopg2": _psycopg,
    "psycopg_pool": _psycopg,
    "MySQLdb": _mysql,
    "pymysql": _mysql,
    "sqlite3": _sqlite,
    "pyodbc": _odbc,
    "oracledb": _oracle,
}
