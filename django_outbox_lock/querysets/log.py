"""Verbs of the processing log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, IntegrityError, models, transaction
from django.db.models.expressions import OrderBy
from django.utils import timezone

from django_outbox_lock import dberrors, errortext

if TYPE_CHECKING:
    import datetime as dt


class _NewestVersion(OrderBy):
    """Orders the rows and, on MySQL and MariaDB, reads them as they are committed now.

    Under REPEATABLE READ a plain read would not see what was committed after the snapshot. The
    lock is the one that the refused INSERT of the same key holds already, so it cannot deadlock.
    It ends the statement only where nothing follows the ORDER BY: no slices.
    """

    def as_mysql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        sql, params = self.as_sql(compiler, connection)
        return f"{sql} LOCK IN SHARE MODE", list(params)


class ProcessingLogQuerySet(models.QuerySet[Any]):
    """Entries, found by their hash; an entry that is done never changes again."""

    def begin(self, **columns: Any) -> Any:
        """Insert an entry that counts as done once the transaction commits.

        Raises ``IntegrityError`` when there is one, after waiting for a concurrent transaction.
        """
        return self.create(status=self.model.Status.DONE, **columns)

    def newest(self, entry_hash: str) -> Any:
        """The entry as committed now, or None when there is none that this snapshot shows."""
        found = self.filter(entry_hash=entry_hash).order_by(_NewestVersion(models.F("id")))
        return next(iter(found), None)

    def resume(
        self, entry_hash: str, attempts: int, body_digest: str, updated_at: dt.datetime
    ) -> bool:
        """Make the failed entry count as done once the transaction commits.

        False when it is not as it was seen, with ``attempts``.
        """
        resumed = self._failed(entry_hash).filter(attempts=attempts)
        return bool(
            resumed.update(
                status=self.model.Status.DONE,
                attempts=attempts + 1,
                last_error="",
                body_digest=body_digest,
                updated_at=updated_at,
            )
        )

    def store_result(self, entry_hash: str, result: bytes | None, result_type: str) -> bool:
        """Keep what the body said; False when the entry of this transaction is gone."""
        return bool(
            self.filter(entry_hash=entry_hash).update(
                result=result, result_type=result_type, updated_at=timezone.now()
            )
        )

    def fail(
        self,
        entry_hash: str,
        last_error: str,
        body_digest: str,
        *,
        claimed_at: dt.datetime | None = None,
        **columns: Any,
    ) -> None:
        """Leave the trace of a failed delivery, unless another one has succeeded meanwhile.

        ``claimed_at``: the ``updated_at`` that this delivery gave to the entry, if its body has
        failed. An entry that has it was committed by the body, which must not count as success.
        Characters that the table's character set does not have are written as escapes.
        """
        trace = {"entry_hash": entry_hash, "last_error": last_error, "body_digest": body_digest}
        try:
            with transaction.atomic(using=self.db):
                self._fail(trace, columns, claimed_at)
        except DatabaseError as error:
            if not dberrors.is_unstorable_text(error):
                raise
            escaped = errortext.escaped(last_error)
            self._fail({**trace, "last_error": escaped}, columns, claimed_at)

    def _fail(
        self, trace: dict[str, str], columns: dict[str, Any], claimed_at: dt.datetime | None
    ) -> None:
        try:
            with transaction.atomic(using=self.db):
                self.create(status=self.model.Status.FAILED, **trace, **columns)
        except IntegrityError as error:
            if not dberrors.is_duplicate_key(error):
                raise
            now, entry = timezone.now(), trace["entry_hash"]
            again = models.F("attempts") + 1
            if not self._failed(entry).update(attempts=again, updated_at=now, **trace):
                own = self.filter(entry_hash=entry, updated_at=claimed_at)
                own.update(status=self.model.Status.FAILED, updated_at=now, **trace)

    def _failed(self, entry_hash: str) -> ProcessingLogQuerySet:
        return self.filter(entry_hash=entry_hash, status=self.model.Status.FAILED)
