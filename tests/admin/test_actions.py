"""Requeue and mark dead from the list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from django_outbox_lock.admin import actions
from django_outbox_lock.models import OutboxMessage
from tests.admin.conftest import url_of
from tests.factories import OutboxMessageFactory

if TYPE_CHECKING:
    from django.test import Client

    from tests.admin.conftest import LogIn

pytestmark = pytest.mark.django_db

STATE = OutboxMessage.State


def choose(
    client: Client, action: str, ids: list[int], *, across: bool = False, **query: Any
) -> Any:
    """What the list posts when an action is chosen."""
    data = {"action": action, "_selected_action": ids, "index": "0", "select_across": int(across)}
    return client.post(url_of("outboxmessage", **query), data)


def confirm(client: Client, response: Any, **query: Any) -> Any:
    """What the confirmation page posts."""
    context = response.context
    data = {
        "action": context["verb"].action,
        "_selected_action": context["selected"],
        "select_across": int(context["across"]),
        "up_to": context["up_to"],
        "confirmed": "yes",
    }
    return client.post(url_of("outboxmessage", **query), data)


def said(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def dead(count: int) -> list[OutboxMessage]:
    rows = OutboxMessageFactory.build_batch(count, dead=True)
    OutboxMessage.objects.bulk_create(rows, batch_size=500)
    return list(OutboxMessage.objects.filter(state=STATE.DEAD))


def test_case_131_all_of_three_thousand_are_requeued(log_in: LogIn) -> None:
    """More than 1,000 ids in a form would be refused with a bare 400."""
    client = log_in("view_outboxmessage", "requeue_outboxmessage")
    rows = dead(3000)
    OutboxMessageFactory.create(topic="other", dead=True)
    first_page = [row.pk for row in rows[-100:]]
    query = {"state": "dead", "topic": "order.created"}
    asked = choose(client, "requeue", first_page, across=True, **query)
    assert asked.status_code == 200
    assert "3,000 dead messages are to be requeued." in asked.content.decode()
    assert asked.content.count(b'name="_selected_action"') == 1
    assert OutboxMessage.objects.filter(state=STATE.DEAD).count() == 3001
    with CaptureQueriesContext(connection) as captured:
        done = confirm(client, asked, **query)
    assert done.status_code == 302
    assert said(done) == ["3,000 messages were requeued: the sweeper sends them."]
    assert OutboxMessage.objects.filter(state=STATE.OUTSTANDING).count() == 3000
    updates = [query for query in captured if query["sql"].startswith("UPDATE")]
    assert len([one for one in updates if "outboxmessage" in one["sql"]]) == 3
    entry = LogEntry.objects.get()
    assert entry.object_repr == "3,000 outbox messages"
    assert entry.change_message == "Requeued. 3,000 messages; state=dead&topic=order.created."


def test_case_133_requeuing_sends_nothing_and_is_quick(log_in: LogIn) -> None:
    """The settings have no publisher at all: sending would fail."""
    client = log_in("view_outboxmessage", "requeue_outboxmessage")
    ids = [row.pk for row in dead(500)]
    began = time.monotonic()
    done = confirm(
        client, choose(client, "requeue", ids[:100], across=True, state="dead"), state="dead"
    )
    assert time.monotonic() - began < 5
    assert said(done) == ["500 messages were requeued: the sweeper sends them."]
    row = OutboxMessage.objects.all()[0]
    assert (row.state, row.attempts, row.settled_at, row.dead_reason) == (10, 0, None, "")
    assert row.due_at is not None


@pytest.mark.parametrize("action", ["requeue", "kill"])
def test_case_133_without_the_permission_there_is_no_action(log_in: LogIn, action: str) -> None:
    client = log_in("view_outboxmessage")
    row = OutboxMessageFactory.create(dead=action == "requeue")
    response = choose(client, action, [row.pk])
    assert not hasattr(response, "context") or "verb" not in (response.context or {})
    data = {"action": action, "_selected_action": [row.pk], "confirmed": "yes", "up_to": row.pk}
    client.post(url_of("outboxmessage"), data)
    state = row.state
    row.refresh_from_db()
    assert row.state == state


def test_each_permission_gives_its_own_action(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "kill_outboxmessage")
    OutboxMessageFactory.create()
    form = client.get(url_of("outboxmessage")).context["action_form"]
    assert [value for value, _ in form.fields["action"].choices if value] == ["kill"]


def test_only_the_selected_are_marked_dead(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "kill_outboxmessage")
    chosen, other = OutboxMessageFactory.create(), OutboxMessageFactory.create()
    asked = choose(client, "kill", [chosen.pk])
    assert "1 outstanding message is to be marked dead." in asked.content.decode()
    done = confirm(client, asked)
    assert said(done) == ["1 message was marked dead."]
    chosen.refresh_from_db()
    other.refresh_from_db()
    assert (chosen.state, chosen.due_at, chosen.dead_reason) == (STATE.DEAD, None, "by operator")
    assert other.state == STATE.OUTSTANDING
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == (str(chosen.pk), "Marked dead.")
    history = client.get(url_of("outboxmessage", "history", chosen.pk)).content.decode()
    assert "Marked dead." in history


def test_what_arrives_after_the_question_is_left_alone(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "kill_outboxmessage")
    first = OutboxMessageFactory.create()
    asked = choose(client, "kill", [first.pk], across=True)
    late = OutboxMessageFactory.create()
    confirm(client, asked)
    late.refresh_from_db()
    assert late.state == STATE.OUTSTANDING


def test_what_was_sent_meanwhile_stays_sent(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "kill_outboxmessage")
    message = OutboxMessageFactory.create()
    asked = choose(client, "kill", [message.pk])
    OutboxMessage.objects.filter(pk=message.pk).update(state=STATE.DISPATCHED, due_at=None)
    done = confirm(client, asked)
    assert "nothing to mark dead" in said(done)[0]
    message.refresh_from_db()
    assert message.state == STATE.DISPATCHED
    assert not LogEntry.objects.exists()


def test_a_selection_without_a_dead_one_is_told(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "requeue_outboxmessage")
    message = OutboxMessageFactory.create()
    response = choose(client, "requeue", [message.pk])
    assert said(response) == ["None of the selected messages is dead: there is nothing to requeue."]


def test_beyond_the_limit_the_oldest_are_changed_and_the_rest_is_told(
    log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "LIMIT", 2)
    monkeypatch.setattr("django_outbox_lock.admin.paginator.LIMIT", 2)
    client = log_in("view_outboxmessage", "requeue_outboxmessage")
    rows = dead(3)
    asked = choose(client, "requeue", [rows[-1].pk], across=True)
    assert "More than 2 of the selected messages" in asked.content.decode()
    done = confirm(client, asked)
    assert len(said(done)) == 2
    left = OutboxMessage.objects.filter(state=STATE.DEAD).values_list("pk", flat=True)
    assert list(left) == [max(row.pk for row in rows)]


@pytest.mark.parametrize("model", ["outboxmessage", "lock"])
def test_with_atomic_requests_each_batch_commits_by_itself(model: str) -> None:
    """Else a fenced holder could be ended before its bump is durable."""
    view: Any = resolve(url_of(model)).func
    assert {"default", "other"} <= view._non_atomic_requests
