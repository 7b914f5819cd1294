"""What a message inherits from its surroundings: the message being handled, and the trace."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.envelope import Envelope

_current: ContextVar[Envelope | None] = ContextVar("django_outbox_lock_message", default=None)


@contextmanager
def handling(envelope: Envelope) -> Iterator[None]:
    """What is published inside was caused by this message and belongs to its flow."""
    token = _current.set(envelope)
    try:
        yield
    finally:
        _current.reset(token)


def current_message() -> Envelope | None:
    """The message that the current thread or task is handling, if any."""
    return _current.get()


def trace_headers() -> dict[str, str]:
    """The current trace as OpenTelemetry's propagators write it; empty without OpenTelemetry.

    With its default propagators: ``traceparent``, ``tracestate`` and ``baggage`` as W3C has them.
    """
    headers: dict[str, str] = {}
    if inject := _injector():
        inject(headers)
    return headers


@functools.cache
def _injector() -> Callable[[dict[str, str]], None] | None:
    try:
        module = import_module("opentelemetry.propagate")
    except ModuleNotFoundError:
        return None
    inject: Callable[[dict[str, str]], None] = module.inject
    return inject
