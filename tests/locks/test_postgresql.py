"""PostgreSQL's advisory locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections

from django_outbox_lock.backends.locks.postgresql import PostgreSQLLock
from django_outbox_lock.testing.locks import LockContract

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle


@pytest.mark.server("postgresql")
class TestContract(LockContract):
    backend_class = PostgreSQLLock

    def end_session(self, handle: LockHandle) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [int(handle.session_id)])
