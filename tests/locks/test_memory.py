"""The in-memory lock keeps the contract as far as its flags go."""

from __future__ import annotations

import pytest

from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.testing.locks import LockContract


@pytest.mark.server("sqlite")  # it asks the database for a token, and no more
class TestContract(LockContract):
    backend_class = MemoryLock
