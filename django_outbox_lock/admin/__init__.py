"""The admin: the outbox, the archive, the processing log, and the Locks page."""

from __future__ import annotations

from django_outbox_lock.admin.archive import ArchivedMessageAdmin
from django_outbox_lock.admin.locks import LockAdmin
from django_outbox_lock.admin.log import ProcessingLogAdmin
from django_outbox_lock.admin.messages import OutboxMessageAdmin
from django_outbox_lock.admin.topics import HoldAdmin, TopicStateAdmin

__all__ = [
    "ArchivedMessageAdmin",
    "HoldAdmin",
    "LockAdmin",
    "OutboxMessageAdmin",
    "ProcessingLogAdmin",
    "TopicStateAdmin",
]
