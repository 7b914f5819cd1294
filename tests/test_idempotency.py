"""The processing log: a message has its effect once, and every delivery is told what happened."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, IntegrityError, OperationalError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase
from django.utils.connection import ConnectionDoesNotExist
from django.utils.functional import SimpleLazyObject

from django_outbox_lock.context import current_message
from django_outbox_lock.delivery import Delivery
from django_outbox_lock.exceptions import AlreadyProcessed, LockNotObtained, ProcessingBusy
from django_outbox_lock.idempotency import RESULT_LIMIT, idempotent, process_once, run_once
from django_outbox_lock.locking import lock, locks
from django_outbox_lock.models import ProcessingLog
from testproject.shop.models import Order
from tests.deliveries import envelope
from tests.sessions import cut_session, on_each_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.envelope import Envelope

pytestmark = pytest.mark.django_db(transaction=True)


def charge(number: str = "1") -> None:
    """The effect: an order's number is unique, so it cannot be charged twice."""
    Order.objects.create(number=number, total=1)


def entry(key: str = "m-1") -> ProcessingLog:
    return ProcessingLog.objects.get(key=key)


def fail(error: BaseException | None = None) -> None:
    """A delivery whose body writes, then raises."""
    with process_once("billing", "m-1", correlation_id="flow-7") as running:
        charge("undone")
        raise error or ZeroDivisionError(f"run {running.attempts}")


def database_gives_up() -> None:
    """An error of the database in use that says: again, please."""
    if connection.vendor == "sqlite":
        with contextlib.closing(connections.create_connection("default")) as other:
            # A copy: every connection of the alias shares the dictionary.
            impatient = {"timeout": 0, "transaction_mode": "IMMEDIATE"}
            other.settings_dict = {**other.settings_dict, "OPTIONS": impatient}
            other.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    raised = {
        "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$",
        "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1205",
    }
    with connection.cursor() as cursor:
        cursor.execute(raised[connection.vendor])


def test_the_body_and_its_entry_commit_together() -> None:
    message = envelope(correlation_id="flow-7")
    with process_once("billing", message) as running:
        charge()
        running.result = {"invoice": 12}
    done = entry(str(message.message_id))
    assert (done.consumer, done.status, done.attempts) == ("billing", "done", 1)
    assert bytes(done.result or b"") == b'{"invoice":12}'
    assert done.correlation_id == "flow-7"
    assert running.attempts == 1
    assert Order.objects.count() == 1


def test_a_duplicate_is_told_what_happened_the_first_time() -> None:
    with process_once("billing", "m-1") as running:
        running.result = [1, "é", None]
    with pytest.raises(AlreadyProcessed) as told, process_once("billing", "m-1"):
        pytest.fail("the body ran")
    assert told.value.status == "done"
    assert told.value.result == [1, "é", None]
    assert told.value.when == entry().updated_at
    assert "'m-1'" in str(told.value)
    assert "'billing'" in str(told.value)


def test_consumers_do_not_share_entries() -> None:
    with process_once("billing", "m-1"):
        charge("1")
    with process_once("shipping", "m-1"):
        charge("2")
    assert Order.objects.count() == 2


@pytest.mark.parametrize("result", [b"\0\xff", {"a": 1}, "text", 0, False, [], None])
def test_run_once_gives_back_the_stored_result(result: Any) -> None:
    calls: list[int] = []

    def pay(amount: int, *, currency: str) -> Any:
        calls.append(amount)
        return result

    first = run_once("billing", "m-1", pay, 5, currency="EUR")
    again = run_once("billing", "m-1", pay, 5, currency="EUR")
    assert first == again == result
    assert type(again) is type(result)
    assert calls == [5]


def test_the_decorator_skips_and_returns_the_stored_result() -> None:
    @idempotent(consumer="billing")
    def pay(message: Envelope, amount: int) -> dict[str, int]:
        charge()
        return {"paid": amount}

    message = envelope()
    assert pay(message, 5) == {"paid": 5}
    assert pay(message, 6) == {"paid": 5}
    assert pay.__name__ == "pay"


@pytest.mark.parametrize(
    "pair", [("Order-A", "order-a"), ("café", "cafe"), ("a", "a ")], ids=["case", "accent", "space"]
)
def test_collations_do_not_make_two_messages_one(pair: tuple[str, str]) -> None:
    """As keys and as consumers, whatever the database takes for equal."""
    for one in pair:
        with process_once("billing", one):
            charge(f"key {pair.index(one)}")
        with process_once(one, "m-1"):
            charge(f"consumer {pair.index(one)}")
    assert Order.objects.count() == 4
    for one in pair:
        with pytest.raises(AlreadyProcessed), process_once("billing", one):
            pytest.fail("the body ran")


def test_a_second_body_is_skipped_and_logged(package_log: pytest.LogCaptureFixture) -> None:
    """Case 119: the same id with another body."""
    message = envelope()
    other = envelope(message_id=message.message_id, body=b"other")
    run_once("billing", message, charge)
    run_once("billing", message, charge)
    assert not package_log.records
    run_once("billing", other, charge)
    [record] = package_log.records
    assert record.levelno == logging.WARNING
    assert str(message.message_id) in record.getMessage()
    assert "another body" in record.getMessage()
    assert "skipped" in record.getMessage()


def test_a_failed_body_is_undone_and_leaves_its_trace() -> None:
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError("no\0 way"))
    failed = entry()
    assert (failed.status, failed.attempts, failed.correlation_id) == ("failed", 1, "flow-7")
    assert failed.last_error == "ZeroDivisionError: no? way"
    assert Order.objects.count() == 0


def test_a_failed_message_is_delivered_again() -> None:
    """It does not count as processed until a delivery succeeds; then it does for ever."""
    for attempt in (1, 2):
        with pytest.raises(ZeroDivisionError, match=f"run {attempt}"):
            fail()
        assert entry().attempts == attempt
    with process_once("billing", "m-1") as running:
        assert running.attempts == 3
        charge()
        running.result = "paid"
    done = entry()
    assert (done.status, done.attempts, done.last_error) == ("done", 3, "")
    assert run_once("billing", "m-1", charge) == "paid"


def test_a_trace_does_not_undo_what_another_delivery_did() -> None:
    ProcessingLog.objects.fail("h" * 64, "first", "", consumer="billing", key="m-1")
    ProcessingLog.objects.filter(key="m-1").update(status=ProcessingLog.Status.DONE)
    ProcessingLog.objects.fail("h" * 64, "late", "", consumer="billing", key="m-1")
    assert (entry().status, entry().attempts, entry().last_error) == ("done", 1, "first")


def test_an_interrupted_body_leaves_no_trace() -> None:
    """Stopping a worker is no failure of the message."""
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert not ProcessingLog.objects.exists()
    assert not Order.objects.exists()


def test_a_result_that_cannot_be_stored_undoes_the_effect() -> None:
    def body() -> object:
        charge()
        return object()

    with pytest.raises(ValueError, match=r"^The result of 'm-1' cannot be written as JSON: "):
        run_once("billing", "m-1", body)
    assert not Order.objects.exists()
    assert entry().status == "failed"


def test_a_result_that_no_statement_carries_is_refused_where_it_is_set() -> None:
    """MariaDB ended the session over it: "server has gone away", which points elsewhere."""
    with process_once("billing", "m-1") as given:
        given.result = b"x" * RESULT_LIMIT
        with pytest.raises(ValueError, match=r"^The result of 'm-1' has 5242881 bytes, more than"):
            given.result = b"x" * (RESULT_LIMIT + 1)
    assert len(entry().result or b"") == RESULT_LIMIT


@pytest.mark.parametrize("failures", [0, 1])
def test_a_failure_after_a_commit_of_the_body_is_no_success(failures: int) -> None:
    """As after DDL on MySQL: the entry was committed as done, and the message was lost."""

    def body() -> None:
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")
        raise KeyError("late")

    for _ in range(failures):
        with pytest.raises(ZeroDivisionError):
            run_once("billing", "m-1", lambda: 1 // 0)
    with pytest.raises(KeyError):
        run_once("billing", "m-1", body)
    assert (entry().status, entry().last_error) == ("failed", "KeyError: 'late'")
    assert entry().attempts == failures + 1
    assert run_once("billing", "m-1", lambda: "done") == "done"


def test_a_commit_that_was_done_and_reports_an_error_stays_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the answer is lost: the effect is there, and must not be had twice."""
    wrapper: Any = connection
    commit = wrapper._commit

    def commit_and_lose_the_answer() -> None:
        commit()
        monkeypatch.undo()
        raise OperationalError("the answer is lost")

    monkeypatch.setattr(connection, "_commit", commit_and_lose_the_answer)
    with (
        pytest.raises(OperationalError, match="the answer is lost"),
        process_once("billing", "m-1"),
    ):
        charge()
    assert (Order.objects.count(), entry().status) == (1, "done")


def test_a_swallowed_error_does_not_pass_for_success() -> None:
    """Django or the server would roll back at the end, without a word."""

    def body() -> None:
        charge()
        with contextlib.suppress(IntegrityError):
            charge()

    with pytest.raises(TransactionManagementError):
        run_once("billing", "m-1", body)
    assert entry().status == "failed"
    assert not Order.objects.exists()


def test_a_swallowed_error_of_plain_sql_does_not_pass_for_success() -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with a silent rollback.

    The others undo the statement alone, and the body goes on.
    """
    with contextlib.suppress(Exception), process_once("billing", "m-1"):
        charge()
        with contextlib.suppress(Exception), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")
    assert (entry().status == "done") == Order.objects.exists()
    assert entry().status == ("failed" if connection.vendor == "postgresql" else "done")


def test_an_error_undone_by_its_own_savepoint_is_the_bodys_business() -> None:
    with process_once("billing", "m-1"):
        charge()
        with contextlib.suppress(IntegrityError), transaction.atomic():
            charge()
    assert entry().status == "done"
    assert Order.objects.count() == 1


def test_a_body_cannot_pass_on_another_entrys_already_processed() -> None:
    """Its caller would take this message for done."""
    with process_once("billing", "m-1"):
        pass
    with (
        pytest.raises(RuntimeError, match="'m-2'"),
        process_once("shipping", "m-2"),
        process_once("billing", "m-1"),
    ):
        pytest.fail("the body ran")
    assert entry("m-2").status == "failed"


class TestDatabaseGivesUp:
    """Deadlock, serialization failure, lock time-out and SQLITE_BUSY are nobody's failure."""

    @pytest.fixture
    def gives_up(self) -> Callable[[int], Callable[[], str]]:
        def body(times: int) -> Callable[[], str]:
            runs = iter(range(times))

            def run() -> str:
                charge()
                if next(runs, None) is not None:
                    database_gives_up()
                return "paid"

            return run

        return body

    def test_run_once_runs_again(self, gives_up: Callable[[int], Callable[[], str]]) -> None:
        assert run_once("billing", "m-1", gives_up(1)) == "paid"
        assert Order.objects.count() == 1
        assert entry().attempts == 1

    def test_but_once_only(self, gives_up: Callable[[int], Callable[[], str]]) -> None:
        with pytest.raises(ProcessingBusy, match="deliver it again") as told:
            run_once("billing", "m-1", gives_up(2))
        assert isinstance(told.value.__cause__, OperationalError)
        assert not Order.objects.exists()
        assert not ProcessingLog.objects.exists()

    def test_a_with_block_cannot_run_again(self) -> None:
        with pytest.raises(ProcessingBusy), process_once("billing", "m-1"):
            database_gives_up()
        assert not ProcessingLog.objects.exists()

    def test_nor_can_what_shares_the_callers_transaction(
        self, gives_up: Callable[[int], Callable[[], str]]
    ) -> None:
        with transaction.atomic():
            charge("earlier")
            with pytest.raises(ProcessingBusy):
                run_once("billing", "m-1", gives_up(1))
            charge("later")
        assert set(Order.objects.values_list("number", flat=True)) == {"earlier", "later"}


class TestInTheCallersTransaction:
    def test_a_duplicate_leaves_it_usable(self) -> None:
        """Case 115: deliver a known id, then go on and commit."""
        with process_once("billing", "m-1") as running:
            running.result = "paid"
        with transaction.atomic():
            charge("earlier")
            with pytest.raises(AlreadyProcessed) as told, process_once("billing", "m-1"):
                pytest.fail("the body ran")
            charge("later")
        assert told.value.result == "paid"
        assert Order.objects.count() == 2

    def test_entry_and_effect_share_its_fate(self) -> None:
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            run_once("billing", "m-1", charge)
            raise ZeroDivisionError
        assert not ProcessingLog.objects.exists()
        assert not Order.objects.exists()
        run_once("billing", "m-1", charge)
        assert Order.objects.count() == 1

    def test_a_failed_body_is_undone_alone_and_leaves_no_trace(self) -> None:
        with transaction.atomic():
            charge("earlier")
            with contextlib.suppress(ZeroDivisionError):
                fail()
            charge("later")
        assert set(Order.objects.values_list("number", flat=True)) == {"earlier", "later"}
        assert not ProcessingLog.objects.exists()

    def test_a_failed_entry_is_taken_over(self) -> None:
        with contextlib.suppress(ZeroDivisionError):
            fail()
        with transaction.atomic(), process_once("billing", "m-1") as running:
            charge()
        assert running.attempts == 2
        assert (entry().status, entry().attempts) == ("done", 2)

    def test_autocommit_off_counts_as_a_transaction(self) -> None:
        connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
        try:
            with contextlib.suppress(ZeroDivisionError):
                fail()
            run_once("billing", "m-2", charge)
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        assert not ProcessingLog.objects.exists()


class TestUsersTestCase(TestCase):
    """The blocks of a user's own ``TestCase`` are not a caller's transaction."""

    def test_a_failure_leaves_its_trace(self) -> None:
        with contextlib.suppress(ZeroDivisionError):
            fail()
        run_once("billing", "m-1", charge)
        run_once("billing", "m-1", charge)
        assert entry().attempts == 2


def test_what_the_body_publishes_was_caused_by_the_message() -> None:
    message = envelope()
    with process_once("billing", message):
        assert current_message() is message
    assert current_message() is None
    with process_once("billing", "m-1"):
        assert current_message() is None


def test_an_unknown_alias_is_named() -> None:
    with (
        pytest.raises(ConnectionDoesNotExist, match="nowhere"),
        process_once("billing", "m-1", using="nowhere"),
    ):
        pytest.fail("the body ran")


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_each_database_has_its_own_log() -> None:
    """``using`` is a database alias; the effect belongs into the same database."""
    with process_once("billing", "m-1", using="other"):
        Order.objects.using("other").create(number="1", total=1)
    assert not ProcessingLog.objects.exists()
    assert ProcessingLog.objects.using("other").get().status == "done"
    run_once("billing", "m-1", charge)
    assert Order.objects.count() == 1


@pytest.mark.parametrize(
    ("consumer", "message", "error", "words"),
    [
        ("", "m-1", ValueError, "consumer must have 1 to 200 characters, not 0"),
        ("c" * 201, "m-1", ValueError, "consumer must have 1 to 200"),
        ("billing", "", ValueError, "message must have 1 to 255 characters, not 0"),
        ("billing", "😀" * 128, ValueError, "not 256"),
        ("billing", "a\0b", ValueError, "message 'a.x00b' has a NUL"),
        ("bil\0ling", "m-1", ValueError, "consumer .* has a NUL"),
        ("billing", "\ud83d", ValueError, "half of a surrogate pair"),
        ("billing", 7, TypeError, "message must be an Envelope or a str, not int"),
        (None, "m-1", TypeError, "consumer must be a str, not NoneType"),
    ],
)
def test_bad_arguments_are_named(
    consumer: Any, message: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words), process_once(consumer, message):
        pytest.fail("the body ran")


@pytest.mark.parametrize(
    ("wait", "error"),
    [(-1, ValueError), (float("nan"), ValueError), ("5", TypeError), (None, TypeError)],
)
def test_a_wait_that_nobody_can_wait_is_named(wait: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="wait must be"), process_once("billing", "m-1", wait=wait):
        pytest.fail("the body ran")
    with pytest.raises(error, match="wait must be"):
        idempotent(consumer="billing", wait=wait)


def test_what_stands_for_a_text_is_kept_as_the_text() -> None:
    """Drivers know ``str`` alone."""
    lazy: Any = SimpleLazyObject(lambda: "lazy")
    with process_once(lazy, lazy, correlation_id=lazy):
        pass
    assert [entry("lazy").consumer, entry("lazy").correlation_id] == ["lazy", "lazy"]


def test_long_keys_are_kept_whole() -> None:
    key = "é" * 255
    run_once("c" * 200, key, charge)
    assert entry(key).consumer == "c" * 200


def test_what_would_run_after_the_transaction_is_refused() -> None:
    """At the decoration, not at the first message."""

    async def coroutine(message: str) -> None: ...

    def generator(message: str) -> Any:
        yield message

    for func in (coroutine, generator):
        with pytest.raises(TypeError, match=f"{func.__name__} is a .*sync_to_async"):
            idempotent(consumer="billing")(func)
        with pytest.raises(TypeError, match=func.__name__):
            run_once("billing", "m-1", func, "m-1")
    with pytest.raises(ValueError, match="consumer"):
        idempotent(consumer="")


def test_called_in_an_event_loop_it_says_so() -> None:
    async def deliver() -> None:
        with process_once("billing", "m-1"):
            pytest.fail("the body ran")

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(deliver())


class TestWithLock:
    """``lock=True``: lock, check, work, mark, release."""

    @pytest.fixture(autouse=True)
    def lock_name(self) -> Iterator[str]:
        yield Delivery.of("billing", "m-1", None).lock_name
        locks["default"].close()

    def test_the_body_runs_under_the_lock(self, lock_name: str) -> None:
        with process_once("billing", "m-1", lock=True):
            assert locks["default"].obtain(lock_name) is None
        with lock(lock_name):
            pass
        with pytest.raises(AlreadyProcessed), process_once("billing", "m-1", lock=True):
            pytest.fail("the body ran")

    def test_a_lock_in_use_is_told_as_busy(self, lock_name: str) -> None:
        @idempotent(consumer="billing", lock=True, wait=0.1)
        def pay(message: str) -> None:
            charge()

        with lock(lock_name):
            with pytest.raises(ProcessingBusy) as told:
                pay("m-1")
            assert isinstance(told.value.__cause__, LockNotObtained)
        pay("m-1")
        assert Order.objects.count() == 1

    def test_a_lock_that_the_body_misses_is_the_bodys_error(self) -> None:
        with (
            pytest.raises(LockNotObtained),
            process_once("billing", "m-1", lock=True),
        ):
            raise LockNotObtained("another resource")
        assert entry().status == "failed"


@on_each_server
@pytest.mark.django_db(transaction=True)
def test_consumer_outlives_the_session_that_it_left_idle(_database: str) -> None:
    """A consumer's connections are nobody's: no request ends, at whose end Django renews them."""
    assert run_once("shop", "first", lambda: 1) == 1
    cut_session()
    assert run_once("shop", "second", lambda: 2) == 2
    assert run_once("shop", "second", lambda: 3) == 2


@on_each_server
@pytest.mark.django_db(transaction=True)
def test_lost_session_of_a_callers_transaction_is_the_callers(_database: str) -> None:
    def caller() -> None:
        with transaction.atomic():
            cut_session()
            run_once("shop", "first", lambda: 1)

    with pytest.raises(Error):
        caller()
    assert not ProcessingLog.objects.exists()
