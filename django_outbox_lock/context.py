"""What a message inherits from its surroundings: the message being handled, and the trace."""

from __future__ import annotations

import functools
import logging
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.envelope import Envelope

logger = logging.getLogger("django_outbox_lock.outbox")

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
    inject = _injector()
    try:
        if inject is not None:
            inject(headers)
    except Exception:
        logger.exception("The trace cannot be written into headers: the message goes without.")
        return {}
    return headers


@functools.cache
def _injector() -> Callable[[dict[str, str]], None] | None:
    try:
        module = import_module("opentelemetry.propagate")
    except ModuleNotFoundError:
        return None
    except Exception:  # a propagator that OTEL_PROPAGATORS names and nobody has installed
        logger.exception("OpenTelemetry cannot be used: messages go without a trace.")
        return None
    inject: Callable[[dict[str, str]], None] = module.inject
    return inject
