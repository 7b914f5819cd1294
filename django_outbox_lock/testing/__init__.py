"""What projects and authors of backends need for their own tests."""

from __future__ import annotations

from django_outbox_lock.testing.publishers import PublisherContract

__all__ = ["PublisherContract"]
