"""A transactional outbox, distributed locks with fencing, and a processing log for Django.

This is the front door: application code imports from here, at any time, even at the top of the
``models.py`` of an app that is listed before this one.
"""

from __future__ import annotations

from django_outbox_lock.composite import lock_all
from django_outbox_lock.decorators import single_instance
from django_outbox_lock.draft import Draft
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.exceptions import (
    AlreadyProcessed,
    InvalidAlias,
    InvalidSettings,
    LockError,
    LockLost,
    LockNotObtained,
    LockTimeout,
    LockUnavailable,
    NotInTransaction,
    OutboxLockError,
    ProcessingBusy,
    PublishError,
    TransportDown,
)
from django_outbox_lock.idempotency import idempotent, process_once, run_once
from django_outbox_lock.locking import lock, locks
from django_outbox_lock.outbox import publish, publish_many
from django_outbox_lock.outcomes import Rejected, Retry, Sent

__all__ = [
    "AlreadyProcessed",
    "Draft",
    "Envelope",
    "InvalidAlias",
    "InvalidSettings",
    "LockError",
    "LockLost",
    "LockNotObtained",
    "LockTimeout",
    "LockUnavailable",
    "NotInTransaction",
    "OutboxLockError",
    "ProcessingBusy",
    "PublishError",
    "Rejected",
    "Retry",
    "Sent",
    "TransportDown",
    "idempotent",
    "lock",
    "lock_all",
    "locks",
    "process_once",
    "publish",
    "publish_many",
    "run_once",
    "single_instance",
]
