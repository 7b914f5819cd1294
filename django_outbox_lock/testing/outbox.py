"""For the tests of a project: what was published, and the settings of one test."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, router
from django.db.models import Max
from django.test import override_settings
from django.test.utils import TestContextDecorator
from django.utils.asyncio import async_unsafe

from django_outbox_lock import codec, conf
from django_outbox_lock.conf import DEFAULT_ALIAS
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.locking import locks
from django_outbox_lock.models import OutboxMessage

if TYPE_CHECKING:
    from types import TracebackType


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


class capture_messages:  # noqa: N801 (called like a function)
    """The messages published in the block, in the order of writing; filled when the block ends.

    What was rolled back inside the block is not among them. Works in a ``TestCase`` and outside a
    transaction, and in a coroutine with ``async with``; messages that other threads commit
    meanwhile are among them, and one that was archived before the block ended is not. ``using`` is
    a database alias; without it the routers choose, as ``publish`` has it.
    """

    def __init__(self, *, using: str | None = None) -> None:
        self._using = using
        self._messages: list[Envelope] = []

    @async_unsafe("In a coroutine, write `async with capture_messages()`.")
    def __enter__(self) -> list[Envelope]:
        alias = self._using or router.db_for_write(OutboxMessage)
        rows = OutboxMessage.objects.using(alias).order_by("id")
        last = rows.aggregate(last=Max("id"))["last"] or 0
        self._published = rows.filter(id__gt=last)
        self._messages = []
        return self._messages

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._fill()
        # In a transaction that can only be rolled back nothing was published.
        elif not connections[self._published.db].needs_rollback:
            with suppress(DatabaseError):
                self._fill()

    async def __aenter__(self) -> list[Envelope]:
        return await sync_to_async(self.__enter__)()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await sync_to_async(self.__exit__)(kind, error, traceback)

    def _fill(self) -> None:
        self._messages.extend(map(_envelope, self._published.all()))


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
