"""Ending this thread's own session of the database, as an operator or a restart does."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import connection

_ENDING = {
    "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
    "mysql": "KILL CONNECTION_ID()",
}


def cut_session() -> None:
    """The server has ended it, and Django has not noticed yet. Skips the test without a server."""
    if connection.vendor not in _ENDING:
        pytest.skip("no session that a server could end")
    connection.ensure_connection()
    with suppress(Exception):  # the statement gets no answer
        connection.connection.cursor().execute(_ENDING[connection.vendor])
