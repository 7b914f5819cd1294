"""What projects and authors of backends need for their own tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_outbox_lock.testing.archives import ArchiveContract
from django_outbox_lock.testing.draining import drain
from django_outbox_lock.testing.outbox import capture_messages, override_outbox
from django_outbox_lock.testing.publishers import PublisherContract

if TYPE_CHECKING:
    from django_outbox_lock.testing.locks import LockContract

__all__ = [
    "ArchiveContract",
    "LockContract",
    "PublisherContract",
    "capture_messages",
    "drain",
    "override_outbox",
]


def __getattr__(name: str) -> object:
    # It needs pytest, which a project whose tests use unittest need not have.
    if name == "LockContract":
        from django_outbox_lock.testing.locks import LockContract

        return LockContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
