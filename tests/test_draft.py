"""From arguments to the values of a row."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from opentelemetry import trace

from django_outbox_lock import context, draft, keys
from django_outbox_lock.clock import to_datetime, to_microseconds
from django_outbox_lock.draft import Draft
from django_outbox_lock.exceptions import PublishError
from tests.test_context import SPAN_ID, TRACE_ID, envelope

if TYPE_CHECKING:
    from pytest_django import Settings

NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
TRACEPARENT = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"


def values(payload: object = None, **fields: Any) -> dict[str, Any]:
    return draft.values(Draft("order.created", payload, **fields), 1000)


def test_a_draft_is_made_of_what_publish_takes() -> None:
    given = Draft("order.created", {"a": 1}, key="42", headers={"h": "1"})
    assert (given.topic, given.payload, given.key) == ("order.created", {"a": 1}, "42")
    assert given == Draft(topic="order.created", payload={"a": 1}, key="42", headers={"h": "1"})
    with pytest.raises(AttributeError):
        given.key = "43"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Draft("order.created", {}, "42")  # type: ignore[call-arg]


def test_key_and_slot() -> None:
    keyed = values(key="42")
    assert keyed["order_key"] == keys.order_key("order.created", "42")
    assert keyed["slot"] == keys.slot(keyed["order_key"], uuid.uuid4())
    free = values()
    assert (free["key"], free["order_key"]) == (None, None)
    assert free["slot"] == keys.slot(None, free["message_id"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"topic": 3}, "topic must be a str, not int"),
        ({"topic": ""}, "topic must have 1 to 200 characters, not 0"),
        ({"topic": "x" * 201}, "topic must have 1 to 200 characters, not 201"),
        ({"topic": "a\0b"}, "topic has a control character"),
        ({"topic": "\ud83d"}, "topic has half of a surrogate pair"),
        ({"key": 42}, "key must be a str, not int"),
        ({"key": ""}, "key must have 1 to 255 characters, not 0"),
        ({"key": "x" * 256}, "key must have 1 to 255 characters, not 256"),
        ({"key": "\udce5"}, "key has half of a surrogate pair"),
        ({"headers": {"a": "\ud83d"}}, "headers.* has half of a surrogate pair"),
        ({"headers": {"a": "x" * 70_000}}, "headers have 70008 bytes as JSON, more than 65536"),
        ({"headers": "a=b"}, "headers must be a mapping, not str"),
        ({"payload": b"", "content_type": ""}, "content_type must have 1 to 100 characters"),
        ({"payload": b"", "content_type": "\ud83d"}, "content_type has half of a surrogate"),
        ({"payload": b"", "content_type": "x" * 101}, "content_type must have 1 to 100"),
        ({"correlation_id": 7}, "correlation_id must be a str, not int"),
        ({"correlation_id": ""}, "correlation_id must have 1 to 200 characters, not 0"),
        ({"causation_id": "x" * 201}, "causation_id must have 1 to 200 characters, not 201"),
        ({"payload": b"x" * 1001}, "payload has 1001 bytes; .* max_bytes allows 1000"),
        ({"payload": "é" * 500}, "payload has 1002 bytes; .* max_bytes allows 1000"),
        ({"available_at": "noon"}, "available_at must be a datetime, not str"),
        ({"available_at": dt.date(2026, 7, 1)}, "available_at must be a datetime, not date"),
        ({"expires_at": 3.5}, "expires_at must be a datetime, not float"),
        ({"available_at": NOON, "expires_at": NOON}, "expires_at must be later than available_at"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    """Case 105 for every field of text."""
    with pytest.raises(PublishError, match=f"^{words}"):
        draft.values(Draft(**{"topic": "order.created", "payload": None} | fields), 1000)


def test_what_stands_for_a_text_is_written_as_the_text() -> None:
    """Drivers know ``str`` alone; an error of theirs would come from the caller's transaction."""
    lazy: Any = SimpleLazyObject(lambda: "lazy")
    row = draft.values(
        Draft(
            lazy,
            b"",
            key=lazy,
            headers={lazy: lazy},
            content_type=lazy,
            correlation_id=lazy,
            causation_id=lazy,
        ),
        1000,
    )
    texts = ("topic", "key", "content_type", "correlation_id", "causation_id")
    assert {(row[name], type(row[name])) for name in texts} == {("lazy", str)}
    assert row["headers"] == '{"lazy":"lazy"}'


def test_limits_are_those_of_the_columns() -> None:
    from django_outbox_lock.codec import CONTENT_TYPE_LIMIT
    from django_outbox_lock.models import OutboxMessage

    limits = {
        "topic": draft.TOPIC_LIMIT,
        "key": draft.KEY_LIMIT,
        "content_type": CONTENT_TYPE_LIMIT,
        "correlation_id": draft.ID_LIMIT,
        "causation_id": draft.ID_LIMIT,
    }
    columns = {field.name: field for field in OutboxMessage._meta.concrete_fields}
    assert {name: columns[name].max_length for name in limits} == limits


def test_a_body_of_the_limit_is_accepted() -> None:
    assert values(b"x" * 1000)["body"] == b"x" * 1000


def test_a_new_flow_is_named_by_its_first_message() -> None:
    first = values()
    assert first["correlation_id"] == str(first["message_id"])
    assert first["causation_id"] == ""


def test_a_message_belongs_to_the_flow_of_the_one_being_handled() -> None:
    with context.handling(cause := envelope(correlation_id="flow-1")):
        effect = values()
        other = values(correlation_id="flow-2", causation_id=uuid.UUID(int=5))
    assert effect["correlation_id"] == "flow-1"
    assert effect["causation_id"] == str(cause.message_id)
    assert other["correlation_id"] == "flow-2"
    assert other["causation_id"] == str(uuid.UUID(int=5))


def test_the_trace_goes_along_unless_given() -> None:
    span = trace.NonRecordingSpan(
        trace.SpanContext(TRACE_ID, SPAN_ID, is_remote=False, trace_flags=trace.TraceFlags(1))
    )
    with trace.use_span(span):
        carried = json.loads(values(headers={"b": "1", "a": "2"})["headers"])
        given = json.loads(values(headers={"traceparent": "mine"})["headers"])
    assert list(carried.items()) == [("b", "1"), ("a", "2"), ("traceparent", TRACEPARENT)]
    assert given == {"traceparent": "mine"}


def test_the_callers_headers_are_left_alone() -> None:
    headers = {"a": "1"}
    values(headers=headers)
    assert headers == {"a": "1"}


@pytest.mark.parametrize("use_tz", [True, False])
def test_moments_are_kept_to_the_microsecond(settings: Settings, *, use_tz: bool) -> None:
    """Case 055: naive ones are in the current zone, as everywhere in Django."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Kathmandu"
    naive = dt.datetime(2026, 7, 1, 17, 45, 0, 7)  # noqa: DTZ001
    expected = to_microseconds(NOON) + 7
    assert values(expires_at=naive)["expires_at"] == expected
    assert values(expires_at=timezone.make_aware(naive))["expires_at"] == expected
    assert values()["expires_at"] is None


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_ends_of_the_calendar_can_be_shown_everywhere(settings: Settings, zone: str) -> None:
    """For many, "never" is the last day of the year 9999, which Tokyo cannot show."""
    settings.TIME_ZONE = zone
    for edge in (dt.datetime.min, dt.datetime.max):  # noqa: DTZ901
        for moment in (edge, edge.replace(tzinfo=dt.UTC)):
            shown = timezone.localtime(to_datetime(values(expires_at=moment)["expires_at"]))
            assert abs(shown.replace(tzinfo=None) - edge) < dt.timedelta(days=4)


@pytest.mark.parametrize("carried", [{"baggage": "x" * 70_000}, {"baggage": "a\nb"}])
def test_a_trace_that_cannot_be_carried_fails_nobodys_change(
    monkeypatch: pytest.MonkeyPatch, carried: dict[str, str]
) -> None:
    monkeypatch.setattr(context, "trace_headers", lambda: carried)
    assert values(headers={"a": "1"})["headers"] == '{"a":"1"}'
