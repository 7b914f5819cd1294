"""Consumers apply each message once: the log's entry commits in the transaction of the effect."""

from __future__ import annotations

import functools
import inspect
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from django.db import router

from django_outbox_lock import codec, delivery
from django_outbox_lock.checked import seconds
from django_outbox_lock.delivery import Delivery
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.exceptions import (
    AlreadyProcessed,
    LockNotObtained,
    ProcessingBusy,
    PublishError,
)
from django_outbox_lock.transactions import in_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Envelope | str)

DEFAULT_WAIT = 5.0
# As for the bodies of messages: above it, a statement is too long for a server as it is delivered.
RESULT_LIMIT = 5 * 1024 * 1024


class Entry:
    """What the body of ``process_once`` gets.

    ``attempts`` counts, from 1, this run and the failed ones that left their trace.
    """

    def __init__(self, given: Delivery, attempts: int) -> None:
        self.consumer = given.consumer
        self.key = given.key
        self.correlation_id = given.correlation_id
        self.attempts = attempts
        self.encoded: tuple[bytes, str] | None = None
        self._result: Any = None

    @property
    def result(self) -> Any:
        """What every duplicate will be told: bytes, anything that JSON can carry, or None.

        It is encoded when it is set; raises ``ValueError`` for anything else, and for what has more
        than 5 MiB then.
        """
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        try:
            self.encoded = None if value is None else _encoded(value, f"The result of {self.key!r}")
        except PublishError as error:
            raise ValueError(str(error)) from error
        self._result = value


def _encoded(value: object, name: str) -> tuple[bytes, str]:
    body, content_type = codec.encode_body(value, name=name)
    if len(body) > RESULT_LIMIT:
        raise PublishError(f"{name} has {len(body)} bytes, more than {RESULT_LIMIT}.")
    return body, content_type


@contextmanager
def process_once(
    consumer: str,
    message: Envelope | str,
    *,
    using: str | None = None,
    wait: float = DEFAULT_WAIT,
    correlation_id: str | None = None,
    lock: bool = False,
) -> Iterator[Entry]:
    """Run the body once for each message and consumer, in one transaction with its log entry.

    ``message`` is an envelope or any string of 1 to 255 characters that identifies the message.
    Outside a transaction one is opened; a failed body is rolled back and leaves its trace, and the
    next delivery runs again. Inside the caller's transaction everything shares its fate, and a
    failed body leaves no trace. A concurrent delivery of the same message is waited for ``wait``
    seconds; ``lock`` puts a distributed lock round it all.

    Raises ``AlreadyProcessed`` before the body runs, when a delivery of the message has succeeded;
    ``ProcessingBusy`` when the wait was too short or the database gave the transaction up
    (deadlock, serialization failure, lock time-out): have the message delivered again;
    ``TypeError`` or ``ValueError`` for a wrong argument, which they name.
    """
    from django_outbox_lock.processing import Processing

    seconds("wait", wait)
    given = Delivery.of(consumer, message, correlation_id)
    alias = using or _write_alias()
    with _locked(given, alias, wait) if lock else nullcontext():
        processing = Processing(given, alias, wait)
        attempts, transaction = processing.claim()
        entry = Entry(given, attempts)
        with processing.settling(transaction):
            yield entry
            processing.finish(entry.encoded)


def run_once(
    consumer: str,
    message: Envelope | str,
    func: Callable[P, R],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R | Any:
    """``func(*args, **kwargs)`` under ``process_once``; a duplicate gets the stored result.

    The result must be bytes, what JSON can carry, or None; a duplicate gets it as JSON gives it
    back. Outside a transaction everything runs once more when the database gave it up. Raises
    ``ProcessingBusy`` and what ``func`` raises.
    """
    _refuse_asynchronous(func)
    return _run(functools.partial(func, *args, **kwargs), consumer, message)


def idempotent(
    *,
    consumer: str,
    using: str | None = None,
    wait: float = DEFAULT_WAIT,
    lock: bool = False,
) -> Callable[[Callable[Concatenate[M, P], R]], Callable[Concatenate[M, P], R | Any]]:
    """``run_once`` as a decorator: the function's first argument is the message.

    The options are those of ``process_once``; a wrong ``consumer`` or ``wait`` is told here. Raises
    ``TypeError`` for what would run after the transaction: coroutine functions and generators.
    """
    delivery.check("consumer", consumer, delivery.CONSUMER_LIMIT)
    seconds("wait", wait)

    def decorate(func: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R | Any]:
        _refuse_asynchronous(func)

        @functools.wraps(func)
        def once(message: M, /, *args: P.args, **kwargs: P.kwargs) -> R | Any:
            body = functools.partial(func, message, *args, **kwargs)
            return _run(body, consumer, message, using=using, wait=wait, lock=lock)

        return once

    return decorate


def _run(
    body: Callable[[], R],
    consumer: str,
    message: Envelope | str,
    *,
    using: str | None = None,
    wait: float = DEFAULT_WAIT,
    lock: bool = False,
) -> R | Any:
    alias = using or _write_alias()
    may_repeat = not in_transaction(alias)
    while True:
        entered = False
        try:
            with process_once(consumer, message, using=alias, wait=wait, lock=lock) as entry:
                entered = True
                entry.result = result = body()
        except AlreadyProcessed as done:
            return done.result
        except ProcessingBusy:
            if not (entered and may_repeat):
                raise
            may_repeat = False
        else:
            return result


@contextmanager
def _locked(given: Delivery, alias: str, wait: float) -> Iterator[None]:
    from django_outbox_lock.locking import lock

    with ExitStack() as stack:
        try:
            stack.enter_context(lock(given.lock_name, timeout=wait, using=alias))
        except LockNotObtained as busy:
            raise ProcessingBusy(f"The {given} is busy, deliver it again: {busy}") from busy
        yield


def _write_alias() -> str:
    from django_outbox_lock.models import ProcessingLog

    return router.db_for_write(ProcessingLog)


def _refuse_asynchronous(func: Callable[..., Any]) -> None:
    kinds = {
        "a coroutine function": inspect.iscoroutinefunction,
        "an asynchronous generator": inspect.isasyncgenfunction,
        "a generator": inspect.isgeneratorfunction,
    }
    for kind, is_kind in kinds.items():
        if is_kind(func):
            raise TypeError(
                f"{func.__qualname__} is {kind}: it would run after the transaction, which is "
                "synchronous. Write a function and call it through sync_to_async."
            )
