"""One delivery on its way through the processing log, on one database."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django.db import (
    DatabaseError,
    Error,
    IntegrityError,
    InterfaceError,
    connections,
    transaction,
)
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from django_outbox_lock import codec, dberrors, errortext
from django_outbox_lock.exceptions import AlreadyProcessed, ProcessingBusy
from django_outbox_lock.models import ProcessingLog
from django_outbox_lock.steady import time
from django_outbox_lock.transactions import in_transaction
from django_outbox_lock.waits import bounded_session, bounded_transaction, bounded_wait

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator

    from django_outbox_lock.delivery import Delivery

logger = logging.getLogger("django_outbox_lock.idempotency")

# How often this delivery has been run, and its open transaction.
Claim = tuple[int, ExitStack]


class Processing:
    """Claims the entry first, lets the body work in the same transaction, settles both."""

    def __init__(self, delivery: Delivery, alias: str, wait: float) -> None:
        self.delivery = delivery
        self.alias = alias
        self.wait = wait
        self.connection = connections[alias]
        self.nested = in_transaction(alias)
        self.entries = ProcessingLog.objects.using(alias)
        self._claimed_at: dt.datetime | None = None
        self._at_commit = False
        self._doubtful = False
        self._given_up: Error | None = None
        self._ended = False

    def claim(self) -> Claim:
        """Insert the entry, or take a failed one over, in a transaction that stays open.

        Waits ``wait`` seconds for another delivery; what the database refused for the moment is
        tried once more, unless the transaction is the caller's; so is what a dead session refused,
        on a new one. Raises ``AlreadyProcessed`` and ``ProcessingBusy``.
        """
        deadline = time.monotonic() + self.wait
        for last in (False, True):
            try:
                claim = self._try_claim(max(0.0, deadline - time.monotonic()))
            except (DatabaseError, InterfaceError) as error:
                if self._has_dropped_dead_session(error) and not last:
                    continue
                if not dberrors.is_transient(error):
                    raise
                waited = dberrors.is_lock_timeout(error) and time.monotonic() >= deadline
                if last or waited or self.nested:
                    raise self._busy(error) from error
            else:
                if claim:
                    return claim
        raise ProcessingBusy(f"The entry of the {self.delivery} is changing: deliver it again.")

    def _has_dropped_dead_session(self, error: Exception) -> bool:
        """Whether the next statement gets a new session in the place of one that died idle."""
        if self.connection.in_atomic_block or not dberrors.is_connection_lost(error):
            return False
        self.connection.close()
        return True

    @contextmanager
    def settling(self, transaction_: ExitStack) -> Iterator[None]:
        """Commit what the block did; or roll it back and leave the trace of the failure."""
        watched = self.connection.execute_wrapper(self._watch)
        try:
            with transaction_, watched, self.delivery.context():
                yield
                self._at_commit = True
        except ProcessingBusy:
            raise
        except AlreadyProcessed as error:
            # The caller would take this message for done; as PEP 479 has it for generators.
            self._leave_trace(error)
            raise RuntimeError(f"The body for the {self.delivery} raised: {error}") from error
        except Exception as error:
            if reason := self._gave_up(error):
                raise self._busy(reason) from reason
            self._leave_trace(error)
            raise

    def finish(self, encoded: tuple[bytes, str] | None) -> None:
        """The end of the body: keep its result, if its transaction can still commit."""
        if self._ended and self._given_up:
            raise self._busy(self._given_up) from self._given_up
        if self.connection.needs_rollback:
            raise TransactionManagementError(
                f"The body for the {self.delivery} left its transaction marked for rollback."
            )
        if encoded is None and not self._doubtful:
            return
        if not self.entries.store_result(self.delivery.entry_hash, *(encoded or (None, ""))):
            raise TransactionManagementError(
                f"The transaction for the {self.delivery} was ended by its body."
            )

    def _try_claim(self, seconds: float) -> Claim | None:
        with bounded_session(self.connection, seconds):
            try:
                return self._open(seconds, self._begin)
            except IntegrityError as error:
                if not dberrors.is_duplicate_key(error):
                    raise
            entry: ProcessingLog | None = self.entries.newest(self.delivery.entry_hash)
            if entry is None:
                return None
            self._compare_bodies(entry)
            if entry.status == ProcessingLog.Status.DONE:
                raise AlreadyProcessed(
                    f"The {self.delivery} was done at {entry.updated_at} already.",
                    status=entry.status,
                    result=_decoded(entry),
                    when=entry.updated_at,
                )
            return self._open(seconds, lambda: self._resume(entry.attempts))

    def _open(self, seconds: float, step: Callable[[], int]) -> Claim | None:
        with ExitStack() as opening:
            opening.enter_context(transaction.atomic(using=self.alias))
            with bounded_transaction(self.connection, seconds):
                attempts = step()
            return (attempts, opening.pop_all()) if attempts else None

    def _begin(self) -> int:
        self._claimed_at = now = timezone.now()
        entry: ProcessingLog = self.entries.begin(
            **self._identity(), body_digest=self.delivery.body_digest, updated_at=now
        )
        return entry.attempts

    def _resume(self, failed: int) -> int:
        self._claimed_at = now = timezone.now()
        given = self.delivery
        resumed = self.entries.resume(given.entry_hash, failed, given.body_digest, now)
        return failed + 1 if resumed else 0

    def _identity(self) -> dict[str, str]:
        names = ("entry_hash", "consumer", "key", "correlation_id")
        return {name: getattr(self.delivery, name) for name in names}

    def _compare_bodies(self, entry: ProcessingLog) -> None:
        old, new = entry.body_digest, self.delivery.body_digest
        if old and new and old != new:
            logger.warning(
                "The %s came with another body than before (SHA-256 %s, then %s): %s.",
                self.delivery,
                old,
                new,
                "skipped" if entry.status == ProcessingLog.Status.DONE else "the new one is taken",
            )

    def _watch(self, execute: Callable[..., Any], *statement: Any) -> Any:
        # A body that catches such an error would go on in another transaction, without the entry,
        # or in a failed one, whose COMMIT rolls back and reports no error (PostgreSQL).
        try:
            return execute(*statement)
        except Error as error:
            self._doubtful = True
            if dberrors.is_transient(error):
                self._given_up = error
            if dberrors.ends_transaction(error):
                self._ended = True
                self._mark_ended()
            raise

    def _gave_up(self, error: Exception) -> Exception | None:
        """The error by which the database asked for another try, if ``error`` came of one."""
        if isinstance(error, DatabaseError):
            return error if dberrors.is_transient(error) else self._given_up
        return self._given_up if self._ended else None

    def _mark_ended(self) -> None:
        if self.connection.in_atomic_block:
            self.connection.set_rollback(True)

    def _busy(self, error: Exception) -> ProcessingBusy:
        ended = self.nested and dberrors.ends_transaction(error)
        if ended:
            self._mark_ended()
        what = (
            "the server has rolled the caller's transaction back" if ended else "nothing was done"
        )
        return ProcessingBusy(f"The {self.delivery} is busy, deliver it again; {what}: {error}")

    def _leave_trace(self, failure: Exception) -> None:
        if self.nested:
            return
        try:
            with bounded_wait(self.connection, self.wait):
                self.entries.fail(
                    last_error=errortext.describe(failure),
                    body_digest=self.delivery.body_digest,
                    # An error of the COMMIT does not say that it was not done.
                    claimed_at=None if self._at_commit else self._claimed_at,
                    **self._identity(),
                )
        except Error:
            logger.exception("The failure of the %s could not be recorded.", self.delivery)


def _decoded(entry: ProcessingLog) -> Any:
    if entry.result is None:
        return None
    result = bytes(entry.result)
    return json.loads(result) if entry.result_type == codec.JSON else result
