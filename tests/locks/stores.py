"""LockContract as stores outside the database keep it, and what the tests of all rooms share."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.db import connections

from django_outbox_lock.testing.locks import LockContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests import servers


class StoreContract(LockContract):
    """The contract on a server of this run; each item has a namespace of its own."""

    server_name: ClassVar[str]

    def place(self, running_server: Callable[[str], servers.Server]) -> dict[str, Any]:
        """The options that lead to the store: a server of this run, if nothing else is given."""
        return self.options_for(running_server(self.server_name))

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        """The room's options that lead to the server."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _environment(
        self, transactional_db: None, running_server: Callable[[str], servers.Server]
    ) -> Iterator[None]:
        place = self.place(running_server)
        self.options = {"namespace": uuid.uuid4().hex, **place}  # type: ignore[misc]
        with self.environment():
            yield

    def test_inside_a_transaction(self) -> None:
        with deferred(self.using):
            super().test_inside_a_transaction()

    def test_the_token_outlives_a_rollback(self) -> None:
        with deferred(self.using):
            super().test_the_token_outlives_a_rollback()


@contextlib.contextmanager
def deferred(using: str) -> Iterator[None]:
    """On SQLite a transaction that begins with its first write, as Django's default is.

    One that has begun to write is the only writer, and leaves the token to nobody.
    """
    connection = connections[using]
    connection.ensure_connection()
    before = getattr(connection, "transaction_mode", None)
    connection.transaction_mode = None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        connection.transaction_mode = before  # type: ignore[attr-defined]
