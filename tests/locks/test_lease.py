"""The lease table, on every database."""

from __future__ import annotations

from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.testing.locks import LockContract


class TestContract(LockContract):
    backend_class = LeaseTableLock
