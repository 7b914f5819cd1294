"""What a message inherits: the flow of the one being handled, and the trace."""

from __future__ import annotations

import contextvars
import datetime as dt
import os
import subprocess
import sys

import pytest
from opentelemetry import trace

from django_outbox_lock import context
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.ids import uuid7

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
SPAN_ID = 0xB7AD6B7169203331


def envelope(correlation_id: str = "flow-1") -> Envelope:
    return Envelope(
        message_id=uuid7(),
        topic="order.created",
        key=None,
        body=b"{}",
        content_type="application/json",
        headers={},
        correlation_id=correlation_id,
        causation_id="",
        created_at=dt.datetime.now(dt.UTC),
    )


def test_the_message_being_handled_is_known_inside_only() -> None:
    outer, inner = envelope(), envelope()
    assert context.current_message() is None
    with context.handling(outer):
        with context.handling(inner):
            assert context.current_message() is inner
        assert context.current_message() is outer
        assert contextvars.Context().run(context.current_message) is None
    assert context.current_message() is None


def test_a_handler_that_raises_leaves_nothing_behind() -> None:
    with pytest.raises(LookupError), context.handling(envelope()):
        raise LookupError
    assert context.current_message() is None


def test_the_trace_is_written_as_w3c_has_it() -> None:
    span = trace.NonRecordingSpan(
        trace.SpanContext(TRACE_ID, SPAN_ID, is_remote=False, trace_flags=trace.TraceFlags(1))
    )
    assert context.trace_headers() == {}
    with trace.use_span(span):
        assert context.trace_headers() == {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        }


def test_opentelemetry_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from django_outbox_lock import context; print(context.trace_headers())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "{}"


def test_a_propagator_that_raises_costs_the_trace_only(
    monkeypatch: pytest.MonkeyPatch, package_log: pytest.LogCaptureFixture
) -> None:
    def inject(headers: dict[str, str]) -> None:
        headers["half"] = "1"
        raise LookupError

    monkeypatch.setattr(context, "_injector", lambda: inject)
    assert context.trace_headers() == {}
    assert "goes without" in package_log.text


def test_a_propagator_that_nobody_has_installed_costs_the_trace_only() -> None:
    """``OTEL_PROPAGATORS`` is often set for all programs of a cluster."""
    code = "from django_outbox_lock import context; print(context.trace_headers())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OTEL_PROPAGATORS": "nobody-has-it"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == "{}"
    assert "nobody-has-it" in done.stderr
