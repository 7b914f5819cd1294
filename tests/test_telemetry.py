"""Spans and metrics of locks, read from OpenTelemetry's exporters in memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from django_outbox_lock import LockLost, lock, locks, signals, telemetry
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer

    from tests.conftest import WaitUntil

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

once = pytest.mark.server("sqlite")
METRICS = {
    "outbox.lock.obtained": "{acquisition}",
    "outbox.lock.contended": "{call}",
    "outbox.lock.at_risk": "{warning}",
    "outbox.lock.lost": "{loss}",
    "outbox.lock.wait": "s",
    "outbox.lock.hold": "s",
    "outbox.lock.overrun": "s",
}


@dataclass
class Observed:
    """What was exported since the test began."""

    tracer: Tracer
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended."""
        return self.exporter.get_finished_spans()

    def metrics(self) -> dict[str, Any]:
        """The metrics by name."""
        data = self.reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def point(self, name: str) -> Any:
        """The one data point of a metric."""
        (point,) = self.metrics()[name].data.data_points
        return point


@pytest.fixture
def observed() -> Iterator[Observed]:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider(metric_readers=[reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = tracers.get_tracer("test")
    listening = telemetry.Telemetry(tracer, meters.get_meter("test"))
    listening.connect()
    yield Observed(tracer, exporter, reader)
    listening.disconnect()
    tracers.shutdown()
    meters.shutdown()
    locks.close()


def hold_too_long(limit: float, until: Callable[[], object]) -> None:
    """Go on under a lock that is lost, and refuse another one meanwhile."""
    with lock("nightly-report", maximum_hold=limit):
        assert locks["default"].obtain("nightly-report") is None
        until()


def test_a_hold_is_a_span(observed: Observed) -> None:
    """It belongs to the span in which the lock was obtained."""
    with observed.tracer.start_as_current_span("request"), lock("nightly-report") as handle:
        assert observed.spans() == ()
    hold, request = observed.spans()
    assert hold.name == "lock nightly-report"
    assert hold.parent == request.context
    assert hold.status.status_code is StatusCode.UNSET
    assert hold.attributes == {
        "resource": "nightly-report",
        "backend": handle.backend.label,
        "database": "default",
        "token": handle.token,
    }


def test_acquisitions_and_refusals(observed: Observed) -> None:
    with lock("nightly-report") as handle:
        assert locks["default"].obtain("nightly-report", timeout=0.1) is None
    attributes = {
        "resource": "nightly-report",
        "backend": handle.backend.label,
        "database": "default",
    }
    for name in ("outbox.lock.obtained", "outbox.lock.contended"):
        assert observed.point(name).value == 1
        assert observed.point(name).attributes == attributes
    wait, hold = observed.point("outbox.lock.wait"), observed.point("outbox.lock.hold")
    assert (wait.count, hold.count) == (2, 1)
    assert wait.max >= 0.1
    assert hold.sum >= 0.1
    assert hold.attributes == attributes
    assert "outbox.lock.lost" not in observed.metrics()


def test_a_loss(observed: Observed, wait_until: WaitUntil) -> None:
    """It ends the span, as an error; how long the work went on is measured when it ends."""
    with pytest.raises(LockLost):
        hold_too_long(0.9, lambda: wait_until(observed.spans, what="the span has ended"))
    (span,) = observed.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["at risk", "lost"]
    assert "0.9 s" in (span.status.description or "")
    lost = observed.point("outbox.lock.lost")
    assert (lost.value, lost.attributes["reason"]) == (1, span.status.description)
    assert observed.point("outbox.lock.at_risk").value == 1
    assert observed.point("outbox.lock.overrun").count == 1


@once
def test_a_loss_that_is_told_before_the_acquisition(observed: Observed) -> None:
    """The signals of a loss come on another thread; no span is left open for ever."""
    handle = locks["default"].obtain("nightly-report")
    assert handle is not None
    assert handle.release()
    named: dict[str, Any] = {"handle": handle, "waited": 0.0, "resource": handle.resource}
    signals.lock_obtained.send(type(handle.backend), **named)
    assert len(observed.spans()) == 2
    assert observed.spans()[1].status.status_code is StatusCode.ERROR


@once
def test_every_metric_has_its_unit_and_is_documented(
    observed: Observed, wait_until: WaitUntil
) -> None:
    with pytest.raises(LockLost):
        hold_too_long(0.3, lambda: wait_until(observed.spans, what="the span has ended"))
    wait_until(lambda: len(observed.metrics()) == len(METRICS), what="all of them are there")
    assert {name: metric.unit for name, metric in observed.metrics().items()} == METRICS
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    for name, unit in METRICS.items():
        assert f"| `{name}` |" in page
        assert f"`{unit}`" in page


def python(code: str) -> str:
    """What a new interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout


SET_UP = (
    "import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'testproject.settings'\n"
    "{before}\n"
    "import django; django.setup()\n"
    "from django_outbox_lock import signals\n"
    "print(bool(signals.lock_obtained.receivers), 'opentelemetry.trace' in sys.modules)"
)


@once
def test_it_is_connected_where_opentelemetry_is_installed() -> None:
    assert python(SET_UP.format(before="")) == "True True\n"


@once
@pytest.mark.parametrize(
    "before",
    ["sys.modules['opentelemetry'] = None", "sys.modules['opentelemetry.metrics'] = None"],
    ids=["not at all", "without the interface"],
)
def test_nothing_happens_where_it_is_not(before: str) -> None:
    assert python(SET_UP.format(before=before)) == "False False\n"


@once
def test_the_front_door_imports_none_of_it() -> None:
    code = (
        "import sys, django_outbox_lock\n"
        "print([m for m in sys.modules if 'opentelemetry' in m or 'telemetry' in m])"
    )
    assert python(code) == "[]\n"
