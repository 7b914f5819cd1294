"""Database errors are told apart by their codes, whatever the language of their messages."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

import MySQLdb
import psycopg
import psycopg_pool
import pyodbc
import pytest
from django.db import IntegrityError, OperationalError, connection

from django_outbox_lock import dberrors
from django_outbox_lock.models import Hold

if TYPE_CHECKING:
    from pathlib import Path


def odbc(state: str, number: int) -> pyodbc.Error:
    """As pyodbc writes it; no SQL Server is at hand."""
    text = f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]Mist ({number})"
    return pyodbc.Error(state, f"{text} (SQLExecDirectW)")


KINDS = ("deadlock", "serialization_failure", "lock_timeout", "duplicate_key", "connection_lost")
CASES: list[tuple[BaseException, set[str]]] = [
    (psycopg.errors.DeadlockDetected("Verklemmung"), {"deadlock"}),
    (psycopg.errors.SerializationFailure(""), {"serialization_failure"}),
    (psycopg.errors.LockNotAvailable(""), {"lock_timeout"}),
    (psycopg.errors.UniqueViolation(""), {"duplicate_key"}),
    (psycopg.errors.ForeignKeyViolation(""), set()),
    (psycopg.errors.AdminShutdown(""), {"connection_lost"}),
    (psycopg.errors.ConnectionFailure(""), {"connection_lost"}),
    (psycopg.OperationalError("the connection is closed"), {"connection_lost"}),
    (psycopg.errors.ConnectionTimeout("connection timeout expired"), {"connection_lost"}),
    (psycopg_pool.PoolTimeout("couldn't get a connection"), {"connection_lost"}),
    (psycopg.ProgrammingError("no result"), set()),
    (psycopg.errors.QueryCanceled(""), set()),
    (MySQLdb.OperationalError(1213, "Interblocage"), {"deadlock"}),
    (MySQLdb.OperationalError(1020, ""), {"serialization_failure"}),
    (MySQLdb.OperationalError(1205, ""), {"lock_timeout"}),
    (MySQLdb.IntegrityError(1062, ""), {"duplicate_key"}),
    (MySQLdb.IntegrityError(1452, ""), set()),
    (MySQLdb.OperationalError(2013, ""), {"connection_lost"}),
    (MySQLdb.InterfaceError(0, ""), {"connection_lost"}),
    (odbc("40001", 1205), {"deadlock"}),
    (odbc("42000", 3960), {"serialization_failure"}),
    (odbc("42000", 1222), {"lock_timeout"}),
    (odbc("23000", 2627), {"duplicate_key"}),
    (odbc("23000", 547), set()),
    (pyodbc.OperationalError("08S01", "Communication link failure"), {"connection_lost"}),
    (ValueError(1213), set()),
    (OSError(5, "an errno is not a code of SQLite's"), set()),
]


def kinds(error: BaseException) -> set[str]:
    return {kind for kind in KINDS if getattr(dberrors, f"is_{kind}")(error)}


@pytest.mark.parametrize(("error", "expected"), CASES, ids=lambda value: repr(value)[:60])
def test_codes_are_recognised(error: BaseException, expected: set[str]) -> None:
    assert kinds(error) == expected
    assert dberrors.is_transient(error) == bool(
        expected & {"deadlock", "serialization_failure", "lock_timeout"}
    )


def test_causes_are_looked_through() -> None:
    """Django's wrapper and an application's error raised from it still tell the code."""
    wrapped = OperationalError("?")
    wrapped.__cause__ = MySQLdb.OperationalError(1213, "")
    outer = RuntimeError("payment failed")
    outer.__cause__ = wrapped
    assert dberrors.is_deadlock(outer)
    assert dberrors.ends_transaction(outer)
    assert not dberrors.ends_transaction(psycopg.errors.DeadlockDetected(""))


def test_sqlite_busy_is_a_lock_timeout(tmp_path: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "x", timeout=0)) as one,
        contextlib.closing(sqlite3.connect(tmp_path / "x", timeout=0)) as two,
    ):
        one.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            two.execute("BEGIN IMMEDIATE")
    assert kinds(caught.value) == {"lock_timeout"}


@pytest.mark.django_db(transaction=True)
def test_the_database_in_use_says_duplicate_key() -> None:
    """Through Django, on every database; a missing value is not a duplicate."""
    Hold.objects.create(order_key=1, head_id=1)
    with pytest.raises(IntegrityError) as caught:
        Hold.objects.create(order_key=1, head_id=2)
    assert kinds(caught.value) == {"duplicate_key"}
    with pytest.raises(IntegrityError) as caught, connection.cursor() as cursor:
        cursor.execute("UPDATE django_outbox_lock_hold SET head_id = NULL")
    assert kinds(caught.value) == set()


def test_only_a_damaged_value_is_undecodable() -> None:
    """Case 003: SQLite's module tells it without a code; what has one is about more than a row."""
    damaged, missing = "SELECT CAST(x'ff' AS TEXT)", "SELECT * FROM nowhere"
    with contextlib.closing(sqlite3.connect(":memory:")) as session:
        for sql, expected in [(damaged, True), (missing, False)]:
            with pytest.raises(sqlite3.OperationalError) as raised:
                session.execute(sql).fetchall()
            assert dberrors.is_undecodable(raised.value) is expected
    with pytest.raises(sqlite3.ProgrammingError) as closed:
        session.execute("SELECT 1")
    assert not dberrors.is_undecodable(closed.value)
    assert dberrors.is_undecodable(ValueError("badly formed hexadecimal UUID string"))
