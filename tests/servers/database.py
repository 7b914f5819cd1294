"""Servers of SQL databases."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from tests.servers.base import Server

DATABASE = "outbox"


class DatabaseServer(Server):
    """A server that starts with an empty database ``outbox`` and a superuser without password."""

    scheme: ClassVar[str]
    superuser: ClassVar[str]

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """The URL of another database on this server."""
        return f"{self.scheme}://{self.superuser}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        self.execute(f"CREATE DATABASE {name}")
        return self.url_of(name)

    @abc.abstractmethod
    def execute(self, statement: str, database: str = DATABASE) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser in a session of its own, in autocommit.

        Returns its rows, if it has any. Needs the database's driver.
        """
