"""What projects and authors of backends need for their own tests."""

from __future__ import annotations

from django_outbox_lock.testing.draining import drain
from django_outbox_lock.testing.outbox import capture_messages, override_outbox
from django_outbox_lock.testing.publishers import PublisherContract

__all__ = ["PublisherContract", "capture_messages", "drain", "override_outbox"]
