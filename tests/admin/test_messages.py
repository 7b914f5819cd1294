"""The outbox in the admin: list, filters, search, the page of a message; who sees what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_outbox_lock.admin import window
from django_outbox_lock.models import OutboxMessage
from tests.admin.conftest import url_of
from tests.factories import ArchivedMessageFactory, OutboxMessageFactory, now

if TYPE_CHECKING:
    from django.test import Client

    from tests.admin.conftest import LogIn

pytestmark = pytest.mark.django_db


def listed(client: Client, **query: Any) -> list[int]:
    """The ids in the list, as they are ordered."""
    response = client.get(url_of("outboxmessage", **query))
    assert response.status_code == 200
    return [message.pk for message in response.context["cl"].result_list]


def test_the_newest_come_first(root: Client) -> None:
    messages = OutboxMessageFactory.create_batch(3)
    assert listed(root) == [message.pk for message in reversed(messages)]


def test_states_are_words(root: Client) -> None:
    OutboxMessageFactory.create()
    OutboxMessageFactory.create(dispatched=True)
    OutboxMessageFactory.create(dead=True)
    page = root.get(url_of("outboxmessage")).content.decode()
    for word in ("outstanding", "dispatched", "dead"):
        assert f">{word}</span>" in page


def test_filters_by_state(root: Client) -> None:
    outstanding = OutboxMessageFactory.create().pk
    dispatched = OutboxMessageFactory.create(dispatched=True).pk
    dead = OutboxMessageFactory.create(dead=True).pk
    assert listed(root, state="outstanding") == [outstanding]
    assert listed(root, state="dispatched") == [dispatched]
    assert listed(root, state="dead") == [dead]
    assert listed(root, state="no such") == [dead, dispatched, outstanding]


def test_a_topic_that_no_text_can_be_finds_nothing(root: Client) -> None:
    OutboxMessageFactory.create()
    assert listed(root, topic="a\0") == []


def test_filters_by_exact_topic_within_a_state(root: Client) -> None:
    OutboxMessageFactory.create(topic="order.paid")
    dead = OutboxMessageFactory.create(topic="order.paid", dead=True).pk
    OutboxMessageFactory.create(topic="order", dead=True)
    assert listed(root, topic="order.paid", state="dead") == [dead]


def test_searches_by_message_id_in_any_spelling(root: Client) -> None:
    OutboxMessageFactory.create()
    message = OutboxMessageFactory.create()
    for text in (str(message.message_id), message.message_id.hex, f" {message.message_id} "):
        assert listed(root, q=text) == [message.pk]


def test_searches_by_exact_key(root: Client) -> None:
    uuid = "0c0f6d0a-1c0e-4b8e-9c3a-6a4f1f6d1b11"
    keyed = OutboxMessageFactory.create(key="S-1").pk
    other = OutboxMessageFactory.create(key="S-1", topic="order.paid").pk
    by_uuid = OutboxMessageFactory.create(key=uuid).pk
    OutboxMessageFactory.create(key="S-10")
    assert listed(root, q="S-1") == [other, keyed]
    assert listed(root, q="S-1", topic="order.paid") == [other]
    assert listed(root, q=uuid) == [by_uuid]
    assert listed(root, q="S") == []


def test_a_filter_looks_through_the_newest_and_then_through_older_ones(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "SIZE", 3)
    rare = [OutboxMessageFactory.create(topic="rare").pk for _ in range(2)]
    others = [message.pk for message in OutboxMessageFactory.create_batch(3)]
    response = root.get(url_of("outboxmessage", topic="rare"))
    assert list(response.context["cl"].result_list) == []
    assert "Only the newest 3 rows" in response.content.decode()
    older = response.context["cl"].older_url
    assert f"before={others[0]}" in older
    response = root.get(url_of("outboxmessage") + older)
    assert [message.pk for message in response.context["cl"].result_list] == rare[::-1]
    assert response.context["cl"].older_url == ""
    assert "before" not in response.context["cl"].newest_url


def test_without_a_condition_or_with_an_index_everything_is_shown(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "SIZE", 1)
    dead = OutboxMessageFactory.create(dead=True).pk
    message = OutboxMessageFactory.create()
    OutboxMessageFactory.create_batch(2, dispatched=True)
    assert listed(root, state="dead") == [dead]
    assert listed(root, state="outstanding") == [message.pk]
    assert listed(root, q=str(message.message_id)) == [message.pk]
    assert len(listed(root)) == 4


@pytest.mark.parametrize("before", ["x", "-1", "1" * 30, "0"])
def test_a_wrong_bound_is_no_error(root: Client, before: str) -> None:
    OutboxMessageFactory.create()
    assert root.get(url_of("outboxmessage", topic="a", before=before)).status_code == 200


@pytest.mark.parametrize("model", ["outboxmessage", "archivedmessage"])
def test_case_095_no_list_reads_bodies(root: Client, model: str) -> None:
    OutboxMessageFactory.create(body=b"x" * 700_000)
    ArchivedMessageFactory.create(body=b"x" * 700_000)
    with CaptureQueriesContext(connection) as captured:
        response = root.get(url_of(model, topic="order.created"))
    assert response.status_code == 200
    selects = [sql for sql in (query["sql"] for query in captured) if "message" in sql]
    for column in ("body", "headers"):
        quoted = connection.ops.quote_name(column)
        assert not [sql for sql in selects if quoted in sql]
    assert not [sql for sql in selects if "GROUP BY" in sql or "JOIN django_outbox" in sql]
    assert len(captured) <= 15


@pytest.mark.parametrize(
    "payload", ["null", '"text"', "0", "[]", "{}", '{"id":9007199254740993,"n":1' + "0" * 40 + "}"]
)
def test_case_139_looking_at_a_message_changes_nothing(root: Client, payload: str) -> None:
    message = OutboxMessageFactory.create(body=payload.encode())
    page = root.get(url_of("outboxmessage", "change", message.pk))
    assert page.status_code == 200
    assert root.post(url_of("outboxmessage", "change", message.pk), {}).status_code == 403
    message.refresh_from_db()
    assert bytes(message.body) == payload.encode()


def test_case_107_all_digits_are_shown(root: Client) -> None:
    digits = ["9007199254740993", "1" + "0" * 40, "0.1", "1E400"]
    message = OutboxMessageFactory.create(body=f"[{','.join(digits)}]".encode())
    page = root.get(url_of("outboxmessage", "change", message.pk)).content.decode()
    for number in digits:
        assert f"\n  {number}" in page


def test_the_page_of_a_message_tells_everything(root: Client) -> None:
    message = OutboxMessageFactory.create(
        key="S-1", headers=json.dumps({"traceparent": "00-abc"}), expires_at=now() + 90_000_000
    )
    page = root.get(url_of("outboxmessage", "change", message.pk)).content.decode()
    for text in (
        str(message.message_id),
        "S-1",
        "traceparent",
        "00-abc",
        "in 1 min",
        "&quot;number",
    ):
        assert text in page


def test_the_body_can_be_downloaded(root: Client) -> None:
    message = OutboxMessageFactory.create(body=b"\x00\xff", content_type="application/octet-stream")
    page = root.get(url_of("outboxmessage", "change", message.pk)).content.decode()
    url = url_of("outboxmessage", "body", message.pk, using="default")
    assert url in page
    assert root.get(url).content == b"\x00\xff"
    assert root.get(url_of("outboxmessage", "body", message.pk + 1)).status_code == 404


def test_who_may_only_look_sees_no_body_and_no_action(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage")
    message = OutboxMessageFactory.create(body=b'"secret"')
    with CaptureQueriesContext(connection) as captured:
        page = client.get(url_of("outboxmessage", "change", message.pk)).content.decode()
    assert "secret" not in page
    assert "hidden" in page
    body = connection.ops.quote_name("body")
    assert not [query for query in captured if body in query["sql"]]
    assert client.get(url_of("outboxmessage", "body", message.pk)).status_code == 403
    listing = client.get(url_of("outboxmessage"))
    assert listing.context["action_form"] is None
    assert "action-select" not in listing.content.decode()


def test_who_may_see_bodies_sees_them(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "view_message_body")
    message = OutboxMessageFactory.create(body=b'"secret"')
    page = client.get(url_of("outboxmessage", "change", message.pk))
    assert "secret" in page.content.decode()
    assert client.get(url_of("outboxmessage", "body", message.pk)).content == b'"secret"'


@pytest.mark.parametrize(
    ("model", "lookup"),
    [
        ("outboxmessage", "body__contains"),
        ("outboxmessage", "headers__contains"),
        ("outboxmessage", "last_error__icontains"),
        ("outboxmessage", "topic__startswith"),
        ("archivedmessage", "body__gt"),
        ("processinglog", "result__contains"),
        ("lock", "resource__contains"),
    ],
)
def test_no_lookup_of_ones_own(log_in: LogIn, model: str, lookup: str) -> None:
    """Django's admin lets any column be asked for in the URL: an oracle on bodies, and a scan."""
    client = log_in(f"view_{model}")
    assert client.get(url_of(model, **{lookup: "s"})).status_code == 400


def test_bodies_alone_open_nothing(log_in: LogIn) -> None:
    client = log_in("view_message_body")
    message = OutboxMessageFactory.create()
    assert client.get(url_of("outboxmessage", "body", message.pk)).status_code == 403
    assert client.get(url_of("outboxmessage")).status_code == 403


@pytest.mark.parametrize("model", ["outboxmessage", "lock", "archivedmessage", "processinglog"])
def test_nothing_is_added_changed_or_deleted(root: Client, model: str) -> None:
    message = OutboxMessageFactory.create()
    assert root.get(url_of(model, "add")).status_code == 403
    if model == "outboxmessage":
        assert root.post(url_of(model, "delete", message.pk), {"post": "yes"}).status_code == 403
        assert OutboxMessage.objects.count() == 1


def test_facets_would_count_everything_and_are_off(root: Client) -> None:
    OutboxMessageFactory.create()
    with CaptureQueriesContext(connection) as captured:
        root.get(url_of("outboxmessage", _facets="True"))
    assert not [query for query in captured if "COUNT(CASE" in query["sql"].upper()]
