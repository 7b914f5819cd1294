"""Spans and metrics of locks through OpenTelemetry, where it is installed; nothing elsewhere.

``connect`` is called when the app is ready. Providers may be set before or after it; without any,
OpenTelemetry's own stand-ins take what is told here and forget it.

=============================  ===================  ================================================
metric                         kind, unit           what it counts or measures
=============================  ===================  ================================================
``outbox.lock.obtained``       counter              acquisitions
``outbox.lock.contended``      counter              calls of obtain that found it busy to the end
``outbox.lock.at_risk``        counter              warnings that a lock may be lost soon
``outbox.lock.lost``           counter              losses; attribute ``reason``
``outbox.lock.wait``           histogram, seconds   from the call of obtain to its answer
``outbox.lock.hold``           histogram, seconds   from obtaining to release or loss
``outbox.lock.overrun``        histogram, seconds   from a loss to the end of the work under it
=============================  ===================  ================================================

All have the attributes ``resource``, ``backend`` and ``database``. A span ``lock RESOURCE`` covers
each hold; it has ``token`` besides, events ``at risk`` and ``lost``, and a loss makes it an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django_outbox_lock import signals
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.dispatch import Signal
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, Tracer

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle

NAME = "django_outbox_lock"


def connect() -> Telemetry | None:
    """Listen to the locks of this process from now on; None where OpenTelemetry is not installed.

    A process without it imports nothing. (Headers of a trace are ``context``'s.)
    """
    if find_spec("opentelemetry") is None:
        return None
    try:
        from opentelemetry import metrics, trace
    except ImportError:  # a package of the same family without the interface
        return None
    telemetry = Telemetry(trace.get_tracer(NAME), metrics.get_meter(NAME))
    telemetry.connect()
    return telemetry


@dataclass(frozen=True, slots=True)
class Hold:
    """One acquisition that is not over yet; ``since`` is monotonic."""

    span: Span
    since: float


class Telemetry:
    """Turns the signals of locks into spans of one tracer and metrics of one meter."""

    def __init__(self, tracer: Tracer, meter: Meter) -> None:
        self._tracer = tracer
        self._obtained = meter.create_counter("outbox.lock.obtained", "{acquisition}")
        self._contended = meter.create_counter("outbox.lock.contended", "{call}")
        self._at_risk = meter.create_counter("outbox.lock.at_risk", "{warning}")
        self._lost = meter.create_counter("outbox.lock.lost", "{loss}")
        self._wait = meter.create_histogram("outbox.lock.wait", "s")
        self._hold = meter.create_histogram("outbox.lock.hold", "s")
        self._overrun = meter.create_histogram("outbox.lock.overrun", "s")
        self._holds: dict[str, Hold] = {}

    def connect(self) -> None:
        """Listen until ``disconnect``."""
        for signal, receiver in self._receivers():
            signal.connect(receiver, weak=False)

    def disconnect(self) -> None:
        """Listen no more."""
        for signal, receiver in self._receivers():
            signal.disconnect(receiver)

    def _receivers(self) -> Iterator[tuple[Signal, Callable[..., None]]]:
        yield signals.lock_obtained, self._on_obtained
        yield signals.lock_contended, self._on_contended
        yield signals.lock_released, self._on_released
        yield signals.lock_at_risk, self._on_risk
        yield signals.lock_lost, self._on_lost
        yield signals.lock_left, self._on_left

    def _on_obtained(self, *, handle: LockHandle, waited: float, **_: object) -> None:
        attributes = _attributes(handle.backend, handle.resource)
        self._obtained.add(1, attributes)
        self._wait.record(waited, attributes)
        attributes = {**attributes, "token": handle.token}
        span = self._tracer.start_span(f"lock {handle.resource}", attributes=attributes)
        self._holds[handle.lock_id] = Hold(span, time.monotonic())
        if handle.ended:  # lost at once, and told of before this
            self._end(handle, "lost while it was obtained")

    def _on_contended(
        self, *, backend: BaseLockBackend, resource: str, waited: float, **_: object
    ) -> None:
        attributes = _attributes(backend, resource)
        self._contended.add(1, attributes)
        self._wait.record(waited, attributes)

    def _on_released(self, *, handle: LockHandle, **_: object) -> None:
        self._end(handle)

    def _on_risk(self, *, handle: LockHandle, left: float, **_: object) -> None:
        self._at_risk.add(1, _attributes(handle.backend, handle.resource))
        if hold := self._holds.get(handle.lock_id):
            hold.span.add_event("at risk", {"left": left})

    def _on_lost(self, *, handle: LockHandle, reason: str, **_: object) -> None:
        self._lost.add(1, {**_attributes(handle.backend, handle.resource), "reason": reason})
        self._end(handle, reason)

    def _on_left(self, *, handle: LockHandle, overrun: float, **_: object) -> None:
        self._overrun.record(overrun, _attributes(handle.backend, handle.resource))

    def _end(self, handle: LockHandle, reason: str = "") -> None:
        hold = self._holds.pop(handle.lock_id, None)
        if hold is None:
            return
        seconds = time.monotonic() - hold.since
        self._hold.record(seconds, _attributes(handle.backend, handle.resource))
        if reason:
            from opentelemetry.trace import StatusCode

            hold.span.add_event("lost", {"reason": reason})
            hold.span.set_status(StatusCode.ERROR, reason)
        hold.span.end()


def _attributes(backend: BaseLockBackend, resource: str) -> dict[str, Any]:
    return {"resource": resource, "backend": backend.label, "database": backend.alias}
