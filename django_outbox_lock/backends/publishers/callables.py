"""Messages are given to Python functions, chosen by topic."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from contextvars import copy_context
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.utils.module_loading import import_string

from django_outbox_lock import errortext
from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.backends.publishers.leftovers import Leftovers
from django_outbox_lock.context import handling
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Rejected, Retry, Sent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from django_outbox_lock.envelope import Envelope

    Handler = Callable[[Envelope], Any]

_REASON_LENGTH = 1000


class CallablePublisher(BasePublisher):
    """Calls the first of ``handlers`` whose pattern (fnmatch) fits the topic.

    A handler is a function, plain or async, or the dotted path of one, and gets the envelope.
    Returning means ``Sent``. It may raise ``Retry``, ``Rejected``, or ``TransportDown`` when what
    it talks to is out of reach; any other exception is a ``Retry`` with its text. What it publishes
    itself is caused by its message.
    """

    one_by_one = True

    def __init__(self, *, handlers: Mapping[str, Handler | str]) -> None:
        if not isinstance(handlers, Mapping):
            raise TypeError(
                "handlers must be a dict of patterns of topics and functions or their dotted "
                f"paths, not {type(handlers).__name__}."
            )
        self._handlers = {pattern: _resolve(pattern, given) for pattern, given in handlers.items()}

    def handles(self, topic: str) -> bool:
        """Whether a pattern fits the topic."""
        return self._handler(topic) is not None

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        """One outcome after each call; a topic that no pattern fits is a ``Retry``."""
        return map(self._publish, envelopes)

    def _publish(self, envelope: Envelope) -> Outcome:
        handler = self._handler(envelope.topic)
        if handler is None:
            # No rejection: this process may be older than the code that handles the topic.
            return Retry(f"No handler for topic {envelope.topic!r} in this process.")
        leftovers = Leftovers()
        try:
            with handling(envelope):
                # A language or a time zone that it activates is its own.
                outcome = copy_context().run(_call, handler, envelope)
        finally:
            left_open = leftovers.clear_away()
        return _unfinished(left_open) if left_open else outcome

    def _handler(self, topic: str) -> Handler | None:
        fitting = (h for pattern, h in self._handlers.items() if fnmatchcase(topic, pattern))
        return next(fitting, None)


def _resolve(pattern: str, given: Handler | str) -> Handler:
    if not isinstance(pattern, str):
        raise TypeError(f"handlers[{pattern!r}]: a pattern must be a str.")
    try:
        handler = import_string(given) if isinstance(given, str) else given
    except ImportError as error:
        raise ValueError(f"handlers[{pattern!r}]: {error}") from error
    if not callable(handler):
        raise TypeError(f"handlers[{pattern!r}]: {given!r} cannot be called.")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError(f"handlers[{pattern!r}]: {given!r} is a generator: a call does nothing.")
    return handler


def _call(handler: Handler, envelope: Envelope) -> Outcome:
    try:
        result = handler(envelope)
        if inspect.isawaitable(result):
            result = async_to_sync(_await)(result)
        elif isinstance(result, Future):
            result = result.result()  # as long as it takes: the sweeper has a limit
    except Exception as error:  # noqa: BLE001 (a handler's error is its message's outcome)
        return _outcome(errortext.innermost(error))
    # Whoever returns an outcome instead of raising it means it.
    if isinstance(result, type) and issubclass(result, Retry | Rejected):
        return Retry(f"The handler returned {result.__name__} without a reason.")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return Retry("The handler returned a generator: nothing was done.")
    return result if isinstance(result, Outcome) else Sent()


def _outcome(error: BaseException) -> Outcome:
    """What a handler meant by raising it; raises ``TransportDown``."""
    match error:
        case Retry():
            return Retry(error.reason, error.after)
        case Rejected():
            return Rejected(error.reason)
        case TransportDown():
            raise error
    text = "".join(traceback.format_exception_only(error)).strip() + errortext.members(error)
    return Retry(f"{text[:_REASON_LENGTH]} ({errortext.place(error)})")


async def _await(result: Awaitable[object]) -> object:
    return await result


def _unfinished(aliases: set[str]) -> Retry:
    """What the handler did is rolled back, so its message must not count as sent."""
    names = ", ".join(sorted(aliases))
    return Retry(f"The handler left a transaction open on {names}; it was rolled back.")
