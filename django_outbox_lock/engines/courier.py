"""Calls publishers, on a thread that can be given up when one of them hangs."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from django.db import connections, reset_queries

from django_outbox_lock.errortext import innermost
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_outbox_lock.backends.publishers.base import BasePublisher
    from django_outbox_lock.envelope import Envelope
    from django_outbox_lock.outcomes import Outcome

logger = logging.getLogger("django_outbox_lock.engines")

# A child that a handler forks throws away what belongs to the threads that it does not have, and
# mysqlclient would say goodbye to the server in the parent's name. What is kept here stays.
_kept: dict[int, Sequence[BaseDatabaseWrapper]] = {}


class Call:
    """One call of a publisher: what went in, and what has come out so far.

    ``ask`` is called after each outcome and tells whether to stop there.
    """

    def __init__(
        self, publisher: BasePublisher, envelopes: Sequence[Envelope], ask: Callable[[], bool]
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.error: BaseException | None = None
        self.stopped = False
        self.timed_out = False
        self.done = threading.Event()
        self.last = time.monotonic()
        self._publisher = publisher
        self._envelopes = envelopes
        self._ask = ask

    @property
    def size(self) -> int:
        """The number of messages that went in."""
        return len(self._envelopes)

    def carry_out(self, errors: type[BaseException]) -> None:
        """Take the outcomes as they come; ``errors`` are kept, others are raised."""
        try:
            self._take_outcomes()
        except errors as error:
            self.error = innermost(error)

    def _take_outcomes(self) -> None:
        outcomes = iter(self._publisher.publish_batch(self._envelopes))
        with contextlib.ExitStack() as stack:
            if close := getattr(outcomes, "close", None):
                stack.callback(close)
            for outcome in itertools.islice(outcomes, len(self._envelopes)):
                self.outcomes.append(outcome)
                self.last = time.monotonic()
                if len(self.outcomes) < len(self._envelopes) and self._ask():
                    self.stopped = True
                    return


class Courier:
    """Carries out calls one after the other, on a thread unless ``inline``.

    A call that gives no outcome for ``timeout`` seconds is abandoned with its thread.
    """

    def __init__(self, timeout: float) -> None:
        self.inline = False
        self._timeout = timeout
        self._worker: _Worker | None = None
        self._abandoned: list[_Worker] = []

    def carry(
        self, publisher: BasePublisher, envelopes: Sequence[Envelope], ask: Callable[[], bool]
    ) -> Call:
        """The call, ended, abandoned (``timed_out``) or stopped."""
        call = Call(publisher, envelopes, ask)
        if self.inline:
            call.carry_out(Exception)
            return call
        if self._worker is None:
            _kept[id(self)] = connections.all(initialized_only=True)
            self._worker = _Worker()
        self._worker.calls.put(call)
        if not self._wait(call):
            call.timed_out = True
            self._abandoned.append(self._worker)
            self._worker.abandon(publisher)
            self._worker = None
        return call

    @property
    def hanging(self) -> int:
        """How many abandoned threads have not come back."""
        self._abandoned = [worker for worker in self._abandoned if worker.is_alive()]
        return len(self._abandoned)

    def close(self) -> None:
        """End the thread; one that is busy has as long as a call may take."""
        if self._worker is not None:
            self._worker.leave()
            self._worker.join(self._timeout)
            self._worker = None
        _kept.pop(id(self), None)

    def _wait(self, call: Call) -> bool:
        while not call.done.wait(max(0.0, call.last + self._timeout - time.monotonic())):
            if time.monotonic() >= call.last + self._timeout:
                return call.done.is_set()
        return True


def _end_child(error: BaseException | None) -> None:
    """End a process that a handler has forked and that came back: here it has nothing to do."""
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(code if isinstance(code, int) else int(code is not None))


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="outbox-publisher", daemon=True)
        self.calls: SimpleQueue[Call | None] = SimpleQueue()
        self._left_behind: BasePublisher | None = None
        self.start()

    def run(self) -> None:
        process = os.getpid()
        while (call := self.calls.get()) is not None:
            try:
                # Whatever a publisher raises, SystemExit included, is the call's error, not the
                # end of this thread.
                call.carry_out(BaseException)
                if os.getpid() != process:
                    _end_child(call.error)
                # The publisher's database connections are this thread's: nobody else closes them.
                reset_queries()
                connections.close_all()
            finally:
                call.done.set()
        if self._left_behind is not None:
            self._close(self._left_behind)

    def abandon(self, publisher: BasePublisher) -> None:
        """End after the call in progress, with the publisher that nobody else uses any more."""
        self._left_behind = publisher
        self.leave()

    def leave(self) -> None:
        """End after the call in progress."""
        self.calls.put(None)

    def _close(self, publisher: BasePublisher) -> None:
        try:
            publisher.close()
        except Exception:
            logger.exception("A publisher that came back too late could not be closed.")
