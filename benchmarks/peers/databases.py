"""Libraries that lock by the database's own means, or in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers.base import LEASE, NAME

if TYPE_CHECKING:
    from benchmarks.peers.base import Work


def postgresql(_address: str) -> dict[str, Work]:
    """An advisory lock."""
    import pglock

    def django_pglock() -> None:
        with pglock.advisory(NAME, timeout=0):
            pass

    return {"by django-pglock": django_pglock}


def mysql(_address: str) -> dict[str, Work]:
    """A user lock."""
    from django_mysql.locks import Lock

    def django_mysql() -> None:
        with Lock(NAME, acquire_timeout=0):
            pass

    return {"by django-mysql": django_mysql}


TABLE_APPS = ("db_mutex", "database_locks")


def sqlite_table(_address: str) -> dict[str, Work]:
    """A row that is inserted and deleted, on any database."""
    from db_mutex.db_mutex import db_mutex

    def django_db_mutex() -> None:
        with db_mutex(NAME):
            pass

    return {"by django-db-mutex": django_db_mutex}


def table(address: str) -> dict[str, Work]:
    """And one that is changed under SELECT FOR UPDATE, which SQLite has not."""
    from database_locks.locks import DBLock

    lock = DBLock(NAME)

    def django_database_locks() -> None:
        if not lock.acquire(lock_ttl=LEASE):
            raise RuntimeError("The lock was busy.")
        lock.release()

    return {**sqlite_table(address), "by django-database-locks": django_database_locks}
