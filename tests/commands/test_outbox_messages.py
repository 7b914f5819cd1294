"""``manage.py outbox status`` and ``requeue``."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command

from django_outbox_lock.clock import SECOND, to_datetime
from django_outbox_lock.models import Hold, OutboxMessage
from django_outbox_lock.querysets import standing
from tests.factories import (
    HoldFactory,
    LockFactory,
    OutboxMessageFactory,
    TopicStateFactory,
    now,
)

if TYPE_CHECKING:
    from tests.conftest import RunManage

pytestmark = pytest.mark.django_db

DEAD = OutboxMessage.State.DEAD


def outbox(*arguments: str) -> str:
    stdout = io.StringIO()
    call_command("outbox", *arguments, stdout=stdout)
    return stdout.getvalue()


def written(seconds_ago: int) -> None:
    row = OutboxMessageFactory.create()
    moment = to_datetime(now() - seconds_ago * SECOND)
    OutboxMessage.objects.filter(pk=row.pk).update(created_at=moment)


def test_an_empty_outbox_has_a_status() -> None:
    lines = outbox("status").splitlines()
    assert len(lines) == 6
    assert lines[0].split() == ["outstanding,", "due", "0"]
    assert lines[-1].split() == ["age", "of", "the", "oldest", "outstanding", "-"]


def test_the_status_shows_what_waits_why_and_who_works() -> None:
    written(120)
    OutboxMessageFactory.create(dead=True)
    TopicStateFactory.create(topic="order.paid", open=True)
    TopicStateFactory.create(topic="order.piad", unroutable_since=1, last_error="no\nroute")
    TopicStateFactory.create(topic="well")
    LockFactory.create(resource="OutboxSweeper", held=True, token=41)
    LockFactory.create(resource="nightly-report", held=True)
    counts, topics, locks = outbox("status").strip().split("\n\n")
    assert counts.splitlines()[0].split()[-1] == "1"
    assert counts.splitlines()[4].split() == ["dead", "1"]
    assert counts.splitlines()[5].split()[-1] == "s"
    assert [line.split() for line in topics.splitlines()[1:]] == [
        ["order.paid", "open", "the", "broker", "is", "away"],
        ["order.piad", "no", "route", "no", "route"],
    ]
    (sweeper,) = locks.splitlines()[1:]
    assert sweeper.split()[:3] == ["OutboxSweeper", "held", "41"]


def test_the_status_for_programs() -> None:
    written(120)
    TopicStateFactory.create(topic="order.paid", paused_at=to_datetime(now()), paused_by="ops")
    LockFactory.create(resource="Archiver", token=3)
    told = json.loads(outbox("status", "--json"))
    assert (told["database"], told["due"], told["dead"]) == ("default", 1, 0)
    assert 119 < told["oldest_age"] < 150
    assert told["capped"] == []
    assert told["topics"] == [{"topic": "order.paid", "state": "paused by ops", "reason": ""}]
    assert [(row["resource"], row["token"]) for row in told["locks"]] == [("Archiver", 3)]


def test_what_is_not_counted_to_the_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "LIMIT", 1)
    OutboxMessageFactory.create_batch(2)
    OutboxMessageFactory.create_batch(2, dead=True)
    lines = outbox("status").splitlines()
    assert lines[0].endswith("10,000+")
    assert lines[4].endswith("10,000+")
    assert "at least" in lines[5]


def test_a_probe_fails_when_the_oldest_is_too_old() -> None:
    written(120)
    assert "outstanding" in outbox("status", "--fail-if-older", "600")
    with pytest.raises(CommandError, match=r"1\d\d s old: more than 60 s") as caught:
        outbox("status", "--fail-if-older", "60")
    assert caught.value.returncode == 1


def test_a_probe_of_an_empty_outbox_is_content() -> None:
    OutboxMessageFactory.create(dead=True)
    assert outbox("status", "--fail-if-older", "0")


@pytest.mark.django_db(transaction=True)
def test_the_probe_is_an_exit_status(run_manage: RunManage) -> None:
    written(120)
    done = run_manage("outbox", "status", "--json", "--fail-if-older", "60", check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["due"] == 1
    assert "more than 60 s" in done.stderr


def test_messages_are_requeued_by_id() -> None:
    rows = OutboxMessageFactory.create_batch(3, dead=True)
    sent = OutboxMessageFactory.create(dispatched=True)
    ids = [str(row.message_id) for row in (*rows[:2], sent)]
    assert outbox("requeue", *ids) == "Messages requeued: 2.\n"
    assert list(OutboxMessage.objects.filter(state=DEAD)) == [rows[2]]


def test_a_topic_is_what_was_written_to_the_character() -> None:
    """MySQL and MariaDB take these for one, but they have routes and handlers of their own."""
    message = OutboxMessageFactory.create(topic="order", dead=True)
    others = [OutboxMessageFactory.create(topic=t, dead=True) for t in ("Order", "ord\u00e9r")]
    assert outbox("requeue", "--topic", "order") == "Messages requeued: 1.\n"
    message.refresh_from_db()
    assert message.state == OutboxMessage.State.OUTSTANDING
    ids = [other.pk for other in others]
    assert OutboxMessage.objects.dead().filter(pk__in=ids).count() == 2


def test_messages_are_requeued_by_topic() -> None:
    OutboxMessageFactory.create_batch(2, topic="a", dead=True)
    kept = OutboxMessageFactory.create(topic="a.b", dead=True)
    assert outbox("requeue", "--topic", "a") == "Messages requeued: 2.\n"
    assert list(OutboxMessage.objects.filter(state=DEAD)) == [kept]


def test_all_are_requeued_within_the_limit() -> None:
    rows = OutboxMessageFactory.create_batch(3, dead=True)
    assert outbox("requeue", "--all", "--limit", "2") == "Messages requeued: 2.\n"
    assert list(OutboxMessage.objects.filter(state=DEAD)) == [rows[2]]


def test_a_dry_run_counts_and_changes_nothing() -> None:
    rows = OutboxMessageFactory.create_batch(3, key="S-1", dead=True)
    HoldFactory.create(head_id=rows[0].pk)
    assert outbox("requeue", "--all", "--dry-run").endswith("no dry run: 3.\n")
    assert outbox("requeue", "--all", "--dry-run", "--limit", "2").endswith(": 2.\n")
    assert outbox("requeue", "--all", "--dry-run", "--let-go").endswith(": 1.\n")
    assert OutboxMessage.objects.filter(state=DEAD).count() == 3
    assert Hold.objects.get().head_id == rows[0].pk


def test_keys_are_let_go_and_nothing_is_requeued() -> None:
    rows = OutboxMessageFactory.create_batch(2, key="S-1", dead=True)
    HoldFactory.create(head_id=rows[0].pk)
    assert outbox("requeue", "--all", "--let-go") == "Keys let go: 1.\n"
    assert OutboxMessage.objects.filter(state=DEAD).count() == 2
    assert Hold.objects.get().head_id == 0


@pytest.mark.parametrize("topic", ["\udcff", "", "x" * 201])
def test_what_can_be_no_topic_is_refused(topic: str) -> None:
    """Of bytes that are no UTF-8 Python makes halves of surrogate pairs, which no driver takes."""
    with pytest.raises(CommandError, match="argument --topic: it "):
        outbox("requeue", "--topic", topic)


@pytest.mark.parametrize("age", ["nan", "-1"])
def test_an_age_that_no_message_has_is_refused(age: str) -> None:
    """A probe that is never told "too old" would be worse than none."""
    with pytest.raises(CommandError, match="--fail-if-older: it must be 0 seconds or more"):
        outbox("status", "--fail-if-older", age)


@pytest.mark.parametrize(
    "selection",
    [(), ("--all", "--topic", "a"), ("--topic", "a", "0197e0f2-7d0c-7c3a-9a51-6f0b8e2f3a44")],
)
def test_an_unclear_selection_is_refused(selection: tuple[str, ...]) -> None:
    OutboxMessageFactory.create(topic="a", dead=True)
    with pytest.raises(CommandError, match="Say which dead messages"):
        outbox("requeue", *selection)
    assert OutboxMessage.objects.filter(state=DEAD).exists()


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(CommandError, match="at least 1"):
        outbox("requeue", "--all", "--limit", "0")
