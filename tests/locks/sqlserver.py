"""Stands in for SQL Server at the driver's seam: no server can be had where the suite runs.

It knows only the statements that the room for SQL Server and the fence send, and answers as the
documentation of the server says. It proves what we ask and how we read the answers, not that the
server gives them; that is proved wherever ``MSSQL_URL`` is given.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pyodbc

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = ("16.0.4100.1", 3)


@dataclass
class Row:
    """The registry's row of the one resource that a test uses."""

    resource: str
    token: int = 0
    owner: str | None = None
    backend: str = ""
    session_id: str = ""
    silent: bool = False


@dataclass
class SQLServer:
    """Sessions, application locks and the registry row, as far as the statements need them."""

    locks: dict[str, int] = field(default_factory=dict)
    row: Row | None = None
    alive: set[int] = field(default_factory=set)
    asked: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    connected: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    code: int | None = None
    schema: str | None = "dbo"
    updateability: str = "READ_WRITE"
    may_look: bool = True
    pooled: bool = False
    fail_next: dict[str, Exception] = field(default_factory=dict)
    _spids: itertools.count[int] = field(default_factory=lambda: itertools.count(51))

    def connect(self, parameters: str, **options: Any) -> Connection:
        self.connected.append((parameters, options))
        spid = next(self._spids)
        self.alive.add(spid)
        return Connection(self, spid)

    def end(self, spid: int) -> None:
        self.alive.discard(spid)
        self.locks = {name: owner for name, owner in self.locks.items() if owner != spid}

    def answer(self, spid: int, sql: str, params: tuple[Any, ...]) -> tuple[list[Any], int]:
        """Rows, and the number of rows that were written."""
        self.asked.append((sql, params))
        if spid not in self.alive:
            raise pyodbc.OperationalError(
                "08S01", "[08S01] Communication link failure (10054) (SQLExecDirectW)"
            )
        for part in self.fail_next:
            if part in sql:
                raise self.fail_next.pop(part)
        if sql.startswith("KILL "):
            self.end(int(sql.removeprefix("KILL ")))
        for part, write in WRITES.items():
            if part in sql:
                return [], write(self, params)
        for part, read in READS.items():
            if part in sql:
                return read(self, spid, params), -1
        return [], -1

    def get_lock(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        if self.code is not None:
            return [(self.code,)]
        granted = self.locks.setdefault(params[0], spid) == spid
        return [(0 if granted else -1,)]

    def release_lock(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        if self.locks.get(params[0]) != spid:
            return [(-999,)]
        del self.locks[params[0]]
        return [(0,)]

    def owns(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        held = self.locks.get(params[0]) == spid and self.updateability == "READ_WRITE"
        return [(int(held),)]

    def grantable(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        return [(int(self.locks.get(params[0], spid) == spid),)]

    def seen(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        if not self.may_look:
            raise pyodbc.ProgrammingError(
                "42000", "[42000] VIEW SERVER STATE permission was denied (300) (SQLExecDirectW)"
            )
        return [
            (f"0:[{name[:32]}]:(2579568b)", owner, "web1", "shop", 4711)
            for name, owner in self.locks.items()
        ]

    def silent(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        row = self.row
        found = row is not None and row.owner is not None and row.silent
        return [(row.token, row.session_id)] if row and found else []

    def token(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        return [(self.row.token,)] if self.row else []

    def registry(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        row = self.row
        if row is None:
            return []
        identity = (row.resource, row.token, row.owner, row.backend, "web1", 4711, "shop")
        return [(*identity, row.session_id, 60_000_000, 1, None, 1, 2)]

    def told_updateability(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        return [(self.updateability,)]

    def table_schema(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        return [(self.schema,)]

    def session_number(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        return [(spid,)]

    def version(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        return [VERSION]

    def one(self, spid: int, params: tuple[Any, ...]) -> list[Any]:
        return [(1,)]

    def insert(self, params: tuple[Any, ...]) -> int:
        self.row = Row(params[1])
        return 1

    def bump(self, params: tuple[Any, ...]) -> int:
        row = self.row
        if row is None or (row.owner is not None and row.backend != params[1]):
            return 0
        row.token += 1
        row.owner, row.backend, row.session_id = params[0], params[1], params[5]
        row.silent = False
        return 1

    def force(self, params: tuple[Any, ...]) -> int:
        row = self.row
        if row is None or row.owner is None or row.token != params[2]:
            return 0
        row.token += 1
        row.owner = None
        return 1

    def touch(self, params: tuple[Any, ...]) -> int:
        return int(self.row is not None and (self.row.token, self.row.owner) == params[1:])

    def free(self, params: tuple[Any, ...]) -> int:
        count = self.touch(params)
        if self.row is not None and count:
            self.row.owner = None
        return count


# The first whose text occurs in a statement answers it.
WRITES: dict[str, Callable[[SQLServer, tuple[Any, ...]], int]] = {
    "[forced_by] = ?": SQLServer.force,
    "[token] = [token] + 1": SQLServer.bump,
    "SET [owner] = NULL": SQLServer.free,
    "SET [last_seen_at]": SQLServer.touch,
    "INSERT INTO": SQLServer.insert,
}
READS: dict[str, Callable[[SQLServer, int, tuple[Any, ...]], list[Any]]] = {
    "sp_getapplock": SQLServer.get_lock,
    "sp_releaseapplock": SQLServer.release_lock,
    "APPLOCK_MODE": SQLServer.owns,
    "APPLOCK_TEST": SQLServer.grantable,
    "dm_tran_locks": SQLServer.seen,
    "Updateability": SQLServer.told_updateability,
    "[owner] IS NOT NULL": SQLServer.silent,
    "SELECT [token]": SQLServer.token,
    "[resource]": SQLServer.registry,
    "OBJECT_SCHEMA_NAME": SQLServer.table_schema,
    "ProductVersion": SQLServer.version,
    "@@SPID": SQLServer.session_number,
    "@@TRANCOUNT": SQLServer.one,
    "SYSDATETIME": SQLServer.one,
    "SELECT 1": SQLServer.one,
}


class Connection:
    """What pyodbc gives back, as far as mssql-django uses it."""

    timeout = 0
    autocommit = False
    reading: Cursor | None = None

    def __init__(self, server: SQLServer, spid: int) -> None:
        self.server = server
        self.spid = spid

    def cursor(self) -> Cursor:
        return Cursor(self)

    def getinfo(self, what: int) -> str:
        return "libmsodbcsql-18.6.so.2.1"

    def add_output_converter(self, kind: int, convert: Any) -> None:
        pass

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        if not self.server.pooled:
            self.server.end(self.spid)


class Cursor:
    """A cursor; as with the driver, nothing else can be asked until its answer is read."""

    rowcount = -1
    description = None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rows: list[Any] = []

    def execute(self, sql: str, params: tuple[Any, ...] = ()) -> Self:
        connection = self.connection
        assert sql.count("?") == len(params)
        if connection.reading not in {None, self}:
            raise pyodbc.Error("HY000", "[HY000] Connection is busy with results for another hstmt")
        self.rows, self.rowcount = connection.server.answer(connection.spid, sql, tuple(params))
        connection.reading = self if self.rows else None
        return self

    def fetchone(self) -> Any:
        return self.rows.pop(0) if self.rows else self._read()

    def fetchall(self) -> list[Any]:
        rows, self.rows = self.rows, []
        self._read()
        return rows

    def fetchmany(self, size: int) -> list[Any]:
        rows, self.rows = self.rows[:size], self.rows[size:]
        return rows or self.fetchall()

    def nextset(self) -> bool:
        return False

    def close(self) -> None:
        self.fetchall()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        if self.connection.reading is self:
            self.connection.reading = None
