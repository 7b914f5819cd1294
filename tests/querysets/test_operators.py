"""Operators' verbs: conditional, in batches, and kind to the keys on hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connection
from django.db.models.query import FlatValuesListIterable, ValuesListIterable
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox_lock import dberrors
from django_outbox_lock.clock import SECOND
from django_outbox_lock.models import Hold, OutboxMessage
from django_outbox_lock.querysets import HoldQuerySet, operators
from django_outbox_lock.querysets.dialect import BelowEach
from django_outbox_lock.querysets.parking import behind_key
from tests.factories import HoldFactory, OutboxMessageFactory, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

pytestmark = pytest.mark.django_db

STATE = OutboxMessage.State
SKIP = {"default": {"TOPICS": {"order.*": {"dead_head": "skip"}}}}


def make(count: int, **columns: Any) -> list[int]:
    rows = OutboxMessageFactory.build_batch(count, **columns)
    OutboxMessage.objects.bulk_create(rows, batch_size=500)
    return list(OutboxMessage.objects.order_by("pk").values_list("pk", flat=True))[-count:]


def updates(captured: CaptureQueriesContext) -> list[str]:
    return [query["sql"] for query in captured if query["sql"].startswith("UPDATE")]


def test_a_requeued_message_is_as_if_it_had_never_been_tried() -> None:
    before = now()
    message = OutboxMessageFactory.create(dead=True, attempts=10)
    assert OutboxMessage.objects.filter(pk=message.pk).requeue() == 1
    message.refresh_from_db()
    assert (message.state, message.attempts) == (STATE.OUTSTANDING, 0)
    assert (message.settled_at, message.dead_reason) == (None, "")
    assert before - 2_000_000 <= message.due_at <= now() + 2_000_000
    assert message.last_error == "the broker refuses it"


def test_a_requeued_message_does_not_expire_again_at_once() -> None:
    """What has passed is cleared; what is still to come stands."""
    to_come = now() + 3600 * SECOND
    OutboxMessageFactory.create(dead=True, expires_at=now() - SECOND)
    OutboxMessageFactory.create(dead=True, expires_at=to_come)
    OutboxMessageFactory.create(dead=True)
    assert OutboxMessage.objects.requeue() == 3
    expiries = OutboxMessage.objects.order_by("pk").values_list("expires_at", flat=True)
    assert list(expiries) == [None, to_come, None]


@pytest.mark.parametrize("columns", [{}, {"dispatched": True}])
def test_only_dead_ones_are_requeued(columns: dict[str, bool]) -> None:
    message = OutboxMessageFactory.create(**columns)
    assert OutboxMessage.objects.requeue() == 0
    state, due_at = message.state, message.due_at
    message.refresh_from_db()
    assert (message.state, message.due_at) == (state, due_at)


@pytest.mark.parametrize("columns", [{"dead": True}, {"dispatched": True}])
def test_only_outstanding_ones_are_killed(columns: dict[str, bool]) -> None:
    message = OutboxMessageFactory.create(**columns)
    assert OutboxMessage.objects.kill() == 0
    state, reason = message.state, message.dead_reason
    message.refresh_from_db()
    assert (message.state, message.dead_reason) == (state, reason)


def test_a_killed_message_is_settled_with_its_reason() -> None:
    message = OutboxMessageFactory.create(due_at=behind_key(1))
    assert OutboxMessage.objects.kill("poison" * 100) == 1
    message.refresh_from_db()
    assert (message.state, message.due_at) == (STATE.DEAD, None)
    assert message.settled_at is not None
    assert message.dead_reason == ("poison" * 100)[:100]
    assert list(OutboxMessage.objects.all().dead()) == [message]


def test_a_dead_message_is_never_without_a_reason() -> None:
    OutboxMessageFactory.create()
    OutboxMessage.objects.kill("")
    assert OutboxMessage.objects.get().dead_reason == operators.BY_OPERATOR


@pytest.mark.parametrize("verb", ["requeue", "kill"])
def test_batches_of_a_thousand_oldest_first(verb: str) -> None:
    ids = make(2500, dead=verb == "requeue")
    with CaptureQueriesContext(connection) as captured:
        assert getattr(OutboxMessage.objects.all(), verb)(limit=2100) == 2100
    assert len(updates(captured)) == 3
    left = OutboxMessage.objects.filter(
        state=STATE.DEAD if verb == "requeue" else STATE.OUTSTANDING
    )
    assert list(left.order_by("pk").values_list("pk", flat=True)) == ids[2100:]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ids each read has fetched, where 4 are read and 2 are changed at a time."""
    fetched: list[int] = []

    def counting(rows: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
        def count(self: Any) -> Iterable[Any]:
            found = list(rows(self))
            fetched.append(len(found))
            return iter(found)

        return count

    for kind in (FlatValuesListIterable, ValuesListIterable):
        monkeypatch.setattr(kind, "__iter__", counting(kind.__iter__))
    monkeypatch.setattr(operators, "READ", 4)
    monkeypatch.setattr(operators, "BATCH", 2)
    return fetched


@pytest.mark.parametrize(
    ("limit", "fetched", "statements"),
    [(None, [4, 4, 1], 5), (6, [4, 2], 3), (4, [4], 2), (3, [3], 2), (0, [0], 0)],
)
def test_a_few_ids_are_read_at_a_time_and_none_beyond_the_limit(
    reads: list[int], limit: int | None, fetched: list[int], statements: int
) -> None:
    ids = make(9, dead=True)
    reads.clear()
    with CaptureQueriesContext(connection) as captured:
        assert OutboxMessage.objects.all().dead().requeue(limit=limit) == sum(fetched)
    assert reads == fetched
    assert len(updates(captured)) == statements
    more = limit is None or limit >= 4  # then the newest of the table is asked for
    assert len(captured) == statements + len([count for count in fetched if count]) + more
    left = OutboxMessage.objects.filter(state=STATE.DEAD).order_by("pk")
    assert list(left.values_list("pk", flat=True)) == ids[sum(fetched) :]


@pytest.mark.parametrize(("limit", "fetched"), [(None, [4, 4, 1]), (6, [4, 2]), (3, [3])])
def test_a_few_keys_are_read_at_a_time_and_none_beyond_the_limit(
    reads: list[int], limit: int | None, fetched: list[int]
) -> None:
    rows = [held(f"S-{number}", dead=True) for number in range(8)]
    HoldFactory.create(head_id=rows[3].pk)  # two of one head, at the edge of a read
    reads.clear()
    assert OutboxMessage.objects.all().let_go(limit=limit) == sum(fetched)
    assert reads == fetched
    assert Hold.objects.filter(head_id=0).count() == sum(fetched)


def test_what_is_written_after_the_first_read_is_not_read(
    reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(6)
    kill = operators.OperatorVerbs._kill

    def kill_and_write(self: Any, ids: list[int], reason: str) -> int:
        OutboxMessageFactory.create(topic="late")
        return kill(self, ids, reason)

    monkeypatch.setattr(operators.OperatorVerbs, "_kill", kill_and_write)
    assert OutboxMessage.objects.kill() == 6
    assert OutboxMessage.objects.filter(topic="late", state=STATE.OUTSTANDING).count() == 3


def test_what_is_written_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "BATCH", 1)
    make(2)
    kill = operators.OperatorVerbs._kill

    def kill_and_write(self: Any, ids: list[int], reason: str) -> int:
        OutboxMessageFactory.create(topic="late")
        return kill(self, ids, reason)

    monkeypatch.setattr(operators.OperatorVerbs, "_kill", kill_and_write)
    assert OutboxMessage.objects.kill() == 2
    assert OutboxMessage.objects.filter(topic="late", state=STATE.OUTSTANDING).count() == 2


def test_what_a_sweeper_sent_between_reading_and_writing_stays_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = OutboxMessageFactory.create()
    skipped = operators.OperatorVerbs._skipped

    def sent_first(self: Any, ids: list[int]) -> list[int]:
        OutboxMessage.objects.mark_dispatched(ids)
        return skipped(self, ids)

    monkeypatch.setattr(operators.OperatorVerbs, "_skipped", sent_first)
    assert OutboxMessage.objects.kill() == 0
    message.refresh_from_db()
    assert message.state == STATE.DISPATCHED


def test_a_requeued_head_stays_the_head_and_its_followers_stay_parked() -> None:
    head = OutboxMessageFactory.create(key="S-1", dead=True)
    hold = HoldFactory.create(order_key=head.order_key, head_id=head.pk)
    follower = OutboxMessageFactory.create(key="S-1", due_at=behind_key(head.order_key))
    OutboxMessage.objects.requeue()
    hold.refresh_from_db()
    assert hold.head_id == head.pk
    parked = follower.due_at
    follower.refresh_from_db()
    assert follower.due_at == parked


def test_a_killed_head_goes_on_holding_its_key() -> None:
    head = OutboxMessageFactory.create(key="S-1")
    HoldFactory.create(order_key=head.order_key, head_id=head.pk)
    OutboxMessage.objects.kill()
    assert Hold.objects.get().head_id == head.pk


@override_settings(OUTBOX_LOCK=SKIP)
def test_where_the_policy_is_to_skip_a_killed_head_lets_its_key_go() -> None:
    head = OutboxMessageFactory.create(key="S-1")
    HoldFactory.create(order_key=head.order_key, head_id=head.pk)
    kept = OutboxMessageFactory.create(topic="invoice.issued", key="S-1")
    HoldFactory.create(order_key=kept.order_key, head_id=kept.pk)
    OutboxMessage.objects.kill()
    assert list(Hold.objects.order_by("pk").values_list("head_id", flat=True)) == [0, kept.pk]


def held(key: str, **columns: Any) -> OutboxMessage:
    """A head with its hold."""
    head: OutboxMessage = OutboxMessageFactory.create(key=key, **columns)
    HoldFactory.create(order_key=head.order_key, head_id=head.pk)
    return head


def heads() -> list[int]:
    return list(Hold.objects.order_by("pk").values_list("head_id", flat=True))


def test_a_dead_head_is_let_go_and_stays_dead() -> None:
    head, other = held("S-1", dead=True), held("S-2", dead=True)
    OutboxMessageFactory.create(key="S-3", dead=True)
    rows = OutboxMessage.objects.filter(pk__lt=other.pk)
    assert list(OutboxMessage.objects.all().holding().order_by("pk")) == [head, other]
    assert rows.let_go() == 1
    assert heads() == [0, other.pk]
    head.refresh_from_db()
    assert head.state == STATE.DEAD
    assert rows.let_go() == 0


def test_a_head_that_is_still_to_be_sent_is_not_let_go() -> None:
    """It would be the head again at once, and its next failure burn nothing but time."""
    head = held("S-1")
    assert OutboxMessage.objects.all().let_go() == 0
    assert Hold.objects.all().let_keys_go() == 0
    assert heads() == [head.pk]


def test_a_head_that_was_requeued_meanwhile_goes_on_holding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = held("S-1", dead=True)
    free = HoldQuerySet._free

    def requeued_first(self: Any, found: Any) -> int:
        OutboxMessage.objects.requeue()
        return free(self, found)

    monkeypatch.setattr(HoldQuerySet, "_free", requeued_first)
    assert OutboxMessage.objects.all().let_go() == 0
    assert heads() == [head.pk]


def test_a_hold_whose_head_is_gone_is_let_go() -> None:
    kept = held("S-1")
    HoldFactory.create(head_id=kept.pk + 1000)
    HoldFactory.create(head_id=0)
    assert Hold.objects.all().stuck().count() == 1
    assert Hold.objects.all().let_keys_go() == 1
    assert heads() == [kept.pk, 0, 0]


def test_keys_are_let_go_in_batches_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "BATCH", 2)
    rows = [held(f"S-{number}", dead=True) for number in range(6)]
    with CaptureQueriesContext(connection) as captured:
        assert OutboxMessage.objects.all().let_go(limit=5) == 5
    assert len(updates(captured)) == 3
    assert heads() == [0, 0, 0, 0, 0, rows[-1].pk]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("failures", "done"), [(2, True), (9, False)])
def test_a_deadlock_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, failures: int, *, done: bool
) -> None:
    """A mock, to fail as often as it takes; ``test_deadlocks`` has the real one."""
    message = OutboxMessageFactory.create(dead=True)
    failing(monkeypatch, failures, transient=True)
    if done:
        assert OutboxMessage.objects.requeue() == 1
    else:
        with pytest.raises(OperationalError):
            OutboxMessage.objects.requeue()
    message.refresh_from_db()
    assert (message.state == STATE.OUTSTANDING) == done


@pytest.mark.django_db(transaction=True)
def test_another_error_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    OutboxMessageFactory.create(dead=True)
    failing(monkeypatch, 1, transient=False)
    with pytest.raises(OperationalError):
        OutboxMessage.objects.requeue()


def failing(monkeypatch: pytest.MonkeyPatch, times: int, *, transient: bool) -> None:
    """Let the next ``times`` updates of messages fail."""
    update: Callable[..., int] = OutboxMessage.objects.all().__class__.update
    left = [times]

    def fail(self: Any, **columns: Any) -> int:
        if left[0]:
            left[0] -= 1
            raise OperationalError("deadlock")
        return update(self, **columns)

    monkeypatch.setattr(operators.OperatorVerbs, "update", fail)
    monkeypatch.setattr(dberrors, "is_transient", lambda _: transient)


def test_conditions_over_many_numbers_can_use_an_index() -> None:
    """Django compares other conditions with 1 on MySQL and MariaDB: a scan for every page."""
    with CaptureQueriesContext(connection) as captured:
        OutboxMessage.objects.mark_dispatched([5, 7])
        list(OutboxMessage.objects.filter(BelowEach({3: 9})))
    for query in captured:
        assert ") = " not in query["sql"].replace("`", "").replace('"', "")


class Replica:
    """Sends reads of the app to a database that is not there."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "nowhere"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.mark.parametrize("verb", ["requeue", "kill", "let_go"])
def test_case_089_verbs_go_where_the_writes_go(verb: str) -> None:
    """Case 089: what is read leads to a write, so it is read where it is written."""
    message = held("S-1", dead=verb != "kill")
    with override_settings(DATABASE_ROUTERS=[f"{__name__}.Replica"]):
        assert getattr(OutboxMessage.objects.filter(pk=message.pk), verb)() == 1
