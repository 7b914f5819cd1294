"""Requeue, mark dead and let keys go from the lists."""

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
from django_outbox_lock.models import Hold, OutboxMessage
from tests.admin.conftest import url_of
from tests.factories import HoldFactory, OutboxMessageFactory

if TYPE_CHECKING:
    from django.test import Client

    from tests.admin.conftest import LogIn

pytestmark = pytest.mark.django_db

STATE = OutboxMessage.State


def choose(
    client: Client,
    action: str,
    ids: list[int],
    *,
    across: bool = False,
    model: str = "outboxmessage",
    **query: Any,
) -> Any:
    """What the list posts when an action is chosen."""
    data = {"action": action, "_selected_action": ids, "index": "0", "select_across": int(across)}
    return client.post(url_of(model, **query), data)


def confirm(client: Client, response: Any, model: str = "outboxmessage", **query: Any) -> Any:
    """What the confirmation page posts."""
    context = response.context
    data = {
        "action": context["verb"].action,
        "_selected_action": context["selected"],
        "select_across": int(context["across"]),
        "up_to": context["up_to"],
        "confirmed": "yes",
    }
    return client.post(url_of(model, **query), data)


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
    assert asked.wsgi_request.current_app == "admin"  # links lead to the site that asks
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
    assert "More than 2 of the selected outbox messages" in asked.content.decode()
    done = confirm(client, asked)
    assert len(said(done)) == 2
    left = OutboxMessage.objects.filter(state=STATE.DEAD).values_list("pk", flat=True)
    assert list(left) == [max(row.pk for row in rows)]
    again = confirm(client, asked)  # a second click on the button
    assert "None of the selected messages is dead" in said(again)[-1]
    assert list(left.all()) == [max(row.pk for row in rows)]


def held(count: int) -> list[OutboxMessage]:
    """Dead messages, each at the head of its key."""
    heads = [OutboxMessageFactory.create(key=f"S-{number}", dead=True) for number in range(count)]
    for head in heads:
        HoldFactory.create(order_key=head.order_key, head_id=head.pk)
    return heads


def test_the_keys_of_all_dead_heads_are_let_go(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "requeue_outboxmessage")
    rows = held(3)
    dead(1)
    asked = choose(client, "let_go", [rows[0].pk], across=True, state="dead")
    assert "3 keys are to go on without their dead messages." in asked.content.decode()
    done = confirm(client, asked, state="dead")
    assert said(done) == ["3 keys go on: the sweeper sends what waited."]
    assert set(Hold.objects.values_list("head_id", flat=True)) == {0}
    assert OutboxMessage.objects.filter(state=STATE.DEAD).count() == 4
    entry = LogEntry.objects.get()
    assert entry.change_message == "Let the key go. 3 messages; state=dead."


def test_one_key_is_let_go_and_its_message_remembers_it(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "requeue_outboxmessage")
    (head,) = held(1)
    asked = choose(client, "let_go", [head.pk])
    assert "1 key is to go on without its dead message." in asked.content.decode()
    assert said(confirm(client, asked)) == ["1 key goes on: the sweeper sends what waited."]
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == (str(head.pk), "Let the key go.")


def test_a_dead_message_that_holds_nothing_is_told(log_in: LogIn) -> None:
    client = log_in("view_outboxmessage", "requeue_outboxmessage")
    response = choose(client, "let_go", [dead(1)[0].pk])
    assert "None of the selected messages is dead and holds its key" in said(response)[0]


def test_holds_are_let_go_from_their_own_list(log_in: LogIn) -> None:
    client = log_in("view_hold", "requeue_outboxmessage")
    held(1)
    HoldFactory.create(head_id=2**40)  # its row does not exist
    waiting = OutboxMessageFactory.create(key="S-9")
    kept = HoldFactory.create(order_key=waiting.order_key, head_id=waiting.pk)
    asked = choose(client, "let_go", [kept.pk], across=True, model="hold")
    assert "2 keys are to go on" in asked.content.decode()
    done = confirm(client, asked, model="hold")
    assert said(done) == ["2 keys go on: the sweeper sends what waited."]
    assert list(Hold.objects.order_by("pk").values_list("head_id", flat=True)) == [0, 0, waiting.pk]
    assert LogEntry.objects.get().change_message == "Let the key go. 2 keys; no filter."
    response = choose(client, "let_go", [kept.pk], model="hold")
    assert "None of the selected holds" in said(response)[-1]


@pytest.mark.parametrize("model", ["outboxmessage", "hold"])
def test_without_the_permission_no_key_is_let_go(log_in: LogIn, model: str) -> None:
    client = log_in(f"view_{model}", "kill_outboxmessage")
    (head,) = held(1)
    row = head if model == "outboxmessage" else Hold.objects.get()
    data = {"action": "let_go", "_selected_action": [row.pk], "confirmed": "yes", "up_to": row.pk}
    client.post(url_of(model), data)
    assert Hold.objects.get().head_id == head.pk


@pytest.mark.parametrize("model", ["outboxmessage", "hold", "lock"])
def test_with_atomic_requests_each_batch_commits_by_itself(model: str) -> None:
    """Else a fenced holder could be ended before its bump is durable."""
    view: Any = resolve(url_of(model)).func
    assert {"default", "other"} <= view._non_atomic_requests
