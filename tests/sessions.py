"""What may befall or be different about this thread's own session of the database."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from django.db import connection

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDING = {
    "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
    "mysql": "KILL CONNECTION_ID()",
}

# For parametrize: a test that needs sessions, which SQLite has not.
SERVERS = [
    pytest.param(name, marks=pytest.mark.server(name))
    for name in ("postgresql", "mariadb", "mysql")
]
on_each_server = pytest.mark.parametrize("_database", SERVERS)


@contextmanager
def binding_on_the_server() -> Iterator[None]:
    """With psycopg parameters keep the type that Django gives them; elsewhere all is as it was."""
    options = connection.settings_dict["OPTIONS"]
    before = dict(options)
    connection.close()
    if connection.vendor == "postgresql":
        options["server_side_binding"] = True
    try:
        yield
    finally:
        connection.close()
        options.clear()
        options.update(before)


def cut_session() -> None:
    """The server has ended it, and Django has not noticed yet."""
    connection.ensure_connection()
    with suppress(Exception):  # the statement gets no answer
        connection.connection.cursor().execute(_ENDING[connection.vendor])
