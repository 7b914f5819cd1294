"""For the tests of a project: what was published, and the settings of one test."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections, router
from django.db.models import Max
from django.test import override_settings
from django.test.utils import TestContextDecorator

from django_outbox_lock import codec, conf
from django_outbox_lock.conf import DEFAULT_ALIAS
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.locking import locks
from django_outbox_lock.models import OutboxMessage

if TYPE_CHECKING:
    from collections.abc import Iterator


class override_outbox(override_settings):  # noqa: N801 (called like a function)
    """Replace whole sections of ``OUTBOX_LOCK[using]`` for a ``with`` block or a decorated test.

    ``override_outbox(SWEEPER={"batch_size": 10})``. Sections that are not named stay as they are;
    an alias without an outbox gets one. Works where ``override_settings`` does: as a context
    manager, on a test method, and on a test class (there from ``setUp`` on). Raises
    ``InvalidSettings``, which names the full path of a wrong key. When ``LOCK`` was replaced, the
    lock backends are closed at the end, with everything that they still hold.
    """

    def __init__(self, using: str = DEFAULT_ALIAS, /, **sections: Any) -> None:
        super().__init__()
        self.using = using
        self.sections = sections

    def enable(self) -> None:
        self.options = {conf.SETTING: self._merged(conf.given())}
        super().enable()
        try:
            conf.outbox_settings(self.using)
        except BaseException:
            super().disable()
            raise

    def disable(self) -> None:
        super().disable()
        if "LOCK" in self.sections:
            locks.close()

    def decorate_class(self, cls: Any) -> Any:
        """Go round each test of the class, so that the end of it is the same as of a block."""
        return TestContextDecorator.decorate_class(self, cls)

    def _merged(self, given: Any) -> dict[str, Any]:
        return {**given, self.using: {**given.get(self.using, {}), **self.sections}}


@contextmanager
def capture_messages(*, using: str | None = None) -> Iterator[list[Envelope]]:
    """The messages published in the block, in the order of writing; filled when the block ends.

    What was rolled back inside the block is not among them. Works in a ``TestCase`` and outside a
    transaction; messages that other threads commit meanwhile are among them, and one that was
    archived before the block ended is not. ``using`` is a database alias; without it the routers
    choose, as ``publish`` has it.
    """
    alias = using or router.db_for_write(OutboxMessage)
    rows = OutboxMessage.objects.using(alias).order_by("id")
    last = rows.aggregate(last=Max("id"))["last"] or 0
    messages: list[Envelope] = []
    try:
        yield messages
    except BaseException:
        # In a transaction that can only be rolled back nothing was published.
        if not connections[alias].needs_rollback:
            with suppress(DatabaseError):
                messages.extend(map(_envelope, rows.filter(id__gt=last)))
        raise
    messages.extend(map(_envelope, rows.filter(id__gt=last)))


def _envelope(row: OutboxMessage) -> Envelope:
    return Envelope(
        message_id=row.message_id,
        topic=row.topic,
        key=row.key,
        body=bytes(row.body),
        content_type=row.content_type,
        headers=codec.decode_headers(row.headers),
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        created_at=row.created_at,
        attempt=row.attempts + 1,
    )
