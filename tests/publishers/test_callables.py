"""Functions as publishers: choice by topic, outcomes, and transactions left open."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone, translation
from django.utils.translation import get_language

from django_outbox_lock.backends.publishers.callables import CallablePublisher
from django_outbox_lock.context import current_message
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Rejected, Retry, Sent
from testproject.shop.models import Order
from tests.publishers.envelopes import make_envelope, make_envelopes
from tests.sessions import cut_session, on_each_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.envelope import Envelope

handled: list[Envelope] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    handled.clear()


def keep(envelope: Envelope) -> None:
    handled.append(envelope)


def outcome_of(handler: Callable[[Envelope], Any]) -> Any:
    publisher = CallablePublisher(handlers={"*": handler})
    (outcome,) = publisher.publish_batch([make_envelope()])
    return outcome


def raising(error: BaseException) -> Callable[[Envelope], None]:
    def handler(envelope: Envelope) -> None:
        raise error

    return handler


def test_first_fitting_pattern_gets_the_envelope() -> None:
    chosen: list[str] = []
    publisher = CallablePublisher(
        handlers={
            "order.paid": lambda _: chosen.append("exact"),
            "order.*": lambda _: chosen.append("pattern"),
            "*": f"{__name__}.keep",
        }
    )
    envelopes = [make_envelope(topic=t) for t in ("order.paid", "order.sent", "Order.paid")]
    assert list(publisher.publish_batch(envelopes)) == [Sent()] * 3
    assert chosen == ["exact", "pattern"]
    assert handled == [envelopes[2]]


def test_topic_without_handler_is_told_and_not_killed() -> None:
    publisher = CallablePublisher(handlers={"order.*": keep})
    assert publisher.handles("order.paid")
    assert not publisher.handles("mail.sent")
    (outcome,) = publisher.publish_batch([make_envelope(topic="mail.sent")])
    assert isinstance(outcome, Retry)
    assert "'mail.sent'" in outcome.reason


def test_outcomes_come_one_by_one() -> None:
    outcomes = iter(CallablePublisher(handlers={"*": keep}).publish_batch(make_envelopes(2)))
    next(outcomes)
    assert len(handled) == 1


def test_handler_raises_its_outcome() -> None:
    retry = outcome_of(raising(Retry("later", after=7)))
    assert isinstance(retry, Retry)
    assert (retry.reason, retry.after) == ("later", 7)
    rejected = outcome_of(raising(Rejected("never")))
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "never"
    assert rejected.__traceback__ is None, "an outcome that is kept would keep the handler's frames"


def test_returned_outcome_is_not_taken_for_success() -> None:
    assert isinstance(outcome_of(lambda _: Retry("later")), Retry)


@pytest.mark.parametrize("outcome", [Retry, Rejected])
def test_an_outcome_without_its_reason_is_no_success_either(outcome: type[Outcome]) -> None:
    """``return Retry``, where ``raise Retry("busy")`` was meant."""
    assert outcome_of(lambda _: outcome).reason == (
        f"The handler returned {outcome.__name__} without a reason."
    )
    assert outcome_of(lambda _: Sent) == Sent()


def test_other_exception_is_a_retry_with_its_truncated_text() -> None:
    outcome = outcome_of(raising(KeyError("x" * 5000)))
    assert isinstance(outcome, Retry)
    assert outcome.reason.startswith("KeyError: 'xxx")
    assert len(outcome.reason) < 1100


def test_the_reason_tells_where_it_was_raised() -> None:
    """A bare "KeyError: 'number'" sends people through the whole handler."""

    def look_up(envelope: Envelope) -> None:
        envelope.headers["number"]

    reason = outcome_of(look_up).reason
    assert re.fullmatch(r"KeyError: 'number' \(test_callables\.py:\d+ in look_up\)", reason)


def test_the_reason_tells_where_an_asynchronous_handler_raised() -> None:
    async def look_up(envelope: Envelope) -> None:
        json.loads(envelope.headers.get("x", ""))

    reason = outcome_of(look_up).reason
    assert re.search(r"\(test_callables\.py:\d+ in look_up \.\.\. decoder\.py:\d+ in", reason)


def test_exception_that_cannot_be_printed_is_a_retry() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert isinstance(outcome_of(raising(Silent())), Retry)


def test_raising_handler_stops_nobody_else() -> None:
    publisher = CallablePublisher(handlers={"bad": raising(ValueError("bad")), "*": keep})
    envelopes = [make_envelope(topic=topic) for topic in ("a", "bad", "b")]
    outcomes = list(publisher.publish_batch(envelopes))
    assert [type(outcome) for outcome in outcomes] == [Sent, Retry, Sent]


@pytest.mark.parametrize("error", [TransportDown("cut"), KeyboardInterrupt(), SystemExit(1)])
def test_what_is_no_verdict_on_the_message_is_passed_on(error: BaseException) -> None:
    with pytest.raises(type(error)):
        outcome_of(raising(error))


async def keep_later(envelope: Envelope) -> None:
    await asyncio.sleep(0)
    handled.append(envelope)


async def refuse_later(envelope: Envelope) -> None:
    await asyncio.sleep(0)
    raise Rejected("never")


def test_async_handlers_are_awaited() -> None:
    assert outcome_of(keep_later) == Sent()
    assert len(handled) == 1
    assert isinstance(outcome_of(refuse_later), Rejected)
    # A plain function that hands back a coroutine has not done anything yet either.
    assert outcome_of(lambda envelope: keep_later(envelope)) == Sent()  # noqa: PLW0108
    assert len(handled) == 2


def test_what_a_handler_publishes_is_caused_by_its_message() -> None:
    current: list[Envelope | None] = []

    async def later(envelope: Envelope) -> None:
        current.append(current_message())

    outcome_of(lambda _: current.append(current_message()))
    outcome_of(later)
    assert [envelope and envelope.topic for envelope in current] == ["order.paid", "order.paid"]
    assert current_message() is None


def generator(envelope: Envelope) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        ("shop.handlers.gone", ValueError),
        (f"{__name__}.gone", ValueError),
        (f"{__name__}.handled", TypeError),
        (generator, TypeError),
    ],
)
def test_wrong_handler_is_told_at_once(handler: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"handlers\['order\.\*'\]"):
        CallablePublisher(handlers={"order.*": handler})


@pytest.mark.parametrize("handlers", ["shop.handlers.keep", [keep], {1: keep}])
def test_handlers_are_a_dict_of_patterns(handlers: Any) -> None:
    with pytest.raises(TypeError, match=r"^handlers"):
        CallablePublisher(handlers=handlers)


def leave_atomic_open(envelope: Envelope) -> None:
    transaction.atomic().__enter__()
    Order.objects.create(number=str(envelope.message_id), total=1)


def leave_autocommit_off(envelope: Envelope) -> None:
    transaction.set_autocommit(False)
    Order.objects.create(number=str(envelope.message_id), total=1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("careless", [leave_atomic_open, leave_autocommit_off])
def test_transaction_left_open_is_rolled_back_and_poisons_nobody(
    careless: Callable[[Envelope], None],
) -> None:
    def careful(envelope: Envelope) -> None:
        with transaction.atomic():
            Order.objects.create(number="careful", total=1)

    publisher = CallablePublisher(handlers={"careless": careless, "*": careful})
    envelopes = [make_envelope(topic=topic) for topic in ("careless", "careful")]
    outcomes = list(publisher.publish_batch(envelopes))
    assert isinstance(outcomes[0], Retry)
    assert "left a transaction open on default" in outcomes[0].reason
    assert outcomes[1] == Sent()
    assert [order.number for order in Order.objects.all()] == ["careful"]


@on_each_server
@pytest.mark.django_db(transaction=True)
def test_session_that_died_costs_one_message(_database: str) -> None:
    """The messages of a page share their handlers' sessions, and all would fail over a dead one."""
    deaf = CallablePublisher(handlers={"*": lambda _: Order.objects.count()})
    answers = deaf.publish_batch(make_envelopes(3))
    assert next(answers) == Sent()
    cut_session()
    assert isinstance(next(answers), Retry)
    assert next(answers) == Sent()


@pytest.mark.django_db(transaction=True)
def test_session_that_is_well_is_kept_after_an_error() -> None:
    def mistaken(_: Envelope) -> None:
        connection.cursor().execute("SELECT nothing FROM nowhere")

    Order.objects.count()
    before = connection.connection
    assert isinstance(outcome_of(mistaken), Retry)
    assert outcome_of(lambda _: Order.objects.count()) == Sent()
    assert connection.connection is before


@pytest.mark.django_db
def test_callers_own_transaction_is_left_alone() -> None:
    Order.objects.create(number="before", total=1)
    assert outcome_of(lambda _: Order.objects.create(number="inside", total=1)) == Sent()
    assert connection.in_atomic_block
    assert Order.objects.count() == 2


@pytest.mark.parametrize("error", [Rejected("never"), Retry("later", after=3)])
def test_outcome_from_a_task_group_is_what_was_raised(error: Retry | Rejected) -> None:
    async def handler(envelope: Envelope) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(raising(error), envelope))

    outcome = outcome_of(handler)
    assert (type(outcome), outcome.reason) == (type(error), error.reason)
    assert getattr(outcome, "after", None) == getattr(error, "after", None)


def test_transport_may_be_down_in_a_task_group() -> None:
    with pytest.raises(TransportDown, match="no route"):
        outcome_of(raising(ExceptionGroup("unhandled", [TransportDown("no route")])))


def test_errors_of_a_group_are_told_one_by_one() -> None:
    group = ExceptionGroup("unhandled errors", [LookupError("first"), ValueError("second")])
    outcome = outcome_of(raising(group))
    assert "unhandled errors" in outcome.reason
    assert "[LookupError: first; ValueError: second]" in outcome.reason


@pytest.mark.django_db
def test_block_left_open_in_the_callers_transaction_is_rolled_back() -> None:
    Order.objects.create(number="before", total=1)
    depth = len(connection.atomic_blocks)
    outcome = outcome_of(leave_atomic_open)
    assert isinstance(outcome, Retry)
    assert "left a transaction open on default" in outcome.reason
    assert [order.number for order in Order.objects.all()] == ["before"]
    assert len(connection.atomic_blocks) == depth


def lose_to_the_database(_: Envelope) -> None:
    Order.objects.create(pk=1, number="first", total=1)
    Order.objects.create(pk=1, number="second", total=1)


def fall_out_with_the_database(_: Envelope) -> None:
    with suppress(DatabaseError):
        connection.cursor().execute("SELECT nothing FROM nowhere")


@pytest.mark.django_db
@pytest.mark.parametrize("handler", [lose_to_the_database, fall_out_with_the_database])
def test_callers_own_transaction_outlives_an_error_of_the_database(
    handler: Callable[[Envelope], None],
) -> None:
    """As in a ``TestCase``: what follows, the engine's own mark first, must go on as ever."""
    Order.objects.create(number="before", total=1)
    outcome_of(handler)
    outcome_of(lambda _: Order.objects.create(number="after", total=1))
    assert sorted(order.number for order in Order.objects.all()) == ["after", "before"]


@pytest.mark.django_db
def test_what_a_handler_did_before_another_error_stays_in_the_callers_transaction() -> None:
    """As it does outside of one, where each statement commits by itself."""

    def handler(_: Envelope) -> None:
        Order.objects.create(number="kept", total=1)
        raise LookupError

    assert isinstance(outcome_of(handler), Retry)
    assert [order.number for order in Order.objects.all()] == ["kept"]


def test_what_a_handler_sets_for_itself_is_not_set_for_the_next() -> None:
    """A language or a time zone; whoever forgets to put it back writes the next mail in it."""
    seen: list[str] = []

    def careless(envelope: Envelope) -> None:
        seen.append(f"{get_language()} {timezone.get_current_timezone_name()}")
        translation.activate("fi")
        timezone.activate("Asia/Tokyo")

    async def careless_too(envelope: Envelope) -> None:
        careless(envelope)

    before = f"{get_language()} {timezone.get_current_timezone_name()}"
    publisher = CallablePublisher(handlers={"async": careless_too, "*": careless})
    envelopes = [make_envelope(topic=topic) for topic in ("plain", "async", "plain")]
    assert list(publisher.publish_batch(envelopes)) == [Sent()] * 3
    assert seen == [before] * 3


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, Sent), (Rejected("no such exchange"), Rejected), (ValueError("refused"), Retry)],
)
def test_case_005_confirmation_that_comes_later_is_waited_for(
    error: Exception | None, expected: type[Outcome]
) -> None:
    """A client that sends in the background returns a future, which may fail after the call."""
    confirmation: Future[None] = Future()
    end = confirmation.set_result if error is None else confirmation.set_exception
    timer = threading.Timer(0.1, end, [error])
    timer.start()
    outcome = outcome_of(lambda _: confirmation)
    timer.join()
    assert type(outcome) is expected


def test_generator_that_was_returned_is_no_success() -> None:
    outcome = outcome_of(lambda _: (number for number in range(3)))
    assert isinstance(outcome, Retry)
    assert "generator" in outcome.reason
