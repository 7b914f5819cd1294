"""Which backend is in force, and what ``lock`` and ``single_instance`` tell."""

from __future__ import annotations

import datetime as dt
import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.test import override_settings

from django_outbox_lock import InvalidSettings, LockLost, LockNotObtained, LockUnavailable, locking
from django_outbox_lock.backends.locks.base import ProbeResult
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.composite import lock_all
from django_outbox_lock.conf import BackendSettings
from django_outbox_lock.decorators import single_instance
from django_outbox_lock.holder import LockState
from django_outbox_lock.locking import lock, locks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

PATH = "OUTBOX_LOCK['default']['LOCK']"
once = pytest.mark.server("sqlite")


def dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def settings(cls: type | None = None, **options: Any) -> BackendSettings:
    return BackendSettings(PATH, None if cls is None else dotted(cls), options)


class Unsafe(LeaseTableLock):
    """A backend whose probe finds a stub."""

    def probe(self) -> ProbeResult:
        return ProbeResult(usable=False, reason="two sessions were given the same lock")


class Unreachable(LeaseTableLock):
    """A backend whose probe gets no answer, for as long as the test says so."""

    answers: ClassVar[list[ProbeResult]] = []

    def probe(self) -> ProbeResult:
        if not self.answers:
            raise LockUnavailable("no route to host")
        return self.answers[0]


def lose(resource: str) -> None:
    handle = locks["default"]._own(resource)
    assert handle is not None
    handle.lose("for the test")


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    locks.close()


@pytest.fixture
def _unsafe_by_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "backend_by_vendor", lambda _: dotted(Unsafe))


# The choice


@pytest.mark.parametrize(
    ("vendor", "room"),
    [
        ("postgresql", "postgresql.PostgreSQLLock"),
        ("mysql", "mysql.MySQLLock"),
        ("microsoft", "microsoft.SQLServerLock"),
        ("sqlite", "lease.LeaseTableLock"),
        ("oracle", "lease.LeaseTableLock"),
        ("cockroachdb", "lease.LeaseTableLock"),
        ("yugabyte", "lease.LeaseTableLock"),
        ("tidb", "lease.LeaseTableLock"),
    ],
)
@once
def test_the_vendor_chooses(vendor: str, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, never by its class: a stub of a lock may hide in a subclass."""
    monkeypatch.setattr(connections["default"], "vendor", vendor)
    chosen = locking.backend_by_vendor("default")
    assert chosen == f"django_outbox_lock.backends.locks.{room}"


def test_the_databases_own_lock_is_in_force() -> None:
    backend = locks["default"]
    assert dotted(type(backend)) == locking.backend_by_vendor("default")
    assert locks["default"] is backend
    assert list(locks) == ["default"]


@once
@pytest.mark.parametrize("name", [":memory:", "file:memorydb_default?mode=memory&cache=shared"])
def test_an_in_memory_database_has_the_in_memory_lock(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second connection can reach it (E21), so nothing else would do in users' tests."""
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", name)
    assert locking.backend_by_vendor("default") == dotted(MemoryLock)


@pytest.mark.usefixtures("_unsafe_by_vendor")
def test_an_unsafe_lock_falls_back_to_the_lease_table(caplog: pytest.LogCaptureFixture) -> None:
    backend = locking.choose("default", settings(lease=7))
    assert type(backend) is LeaseTableLock
    assert backend.lease == 7
    assert "lease table, because two sessions were given the same lock" in caplog.text


def test_an_unsafe_lock_that_was_chosen_by_hand_is_an_error() -> None:
    with pytest.raises(InvalidSettings, match=r"\['BACKEND'\] cannot be used: two sessions"):
        locking.choose("default", settings(Unsafe))


def test_a_probe_that_could_not_be_completed_is_asked_again() -> None:
    """It is neither a stub nor a proof: an error now, and another try at the next use."""
    lock_settings = {"BACKEND": dotted(Unreachable), "OPTIONS": {"lease": 30}}
    with override_settings(OUTBOX_LOCK={"default": {"LOCK": lock_settings}}):
        with pytest.raises(LockUnavailable):
            locks["default"]
        Unreachable.answers.append(ProbeResult(usable=True))
        try:
            assert type(locks["default"]) is Unreachable
        finally:
            Unreachable.answers.clear()


def test_other_settings_make_another_backend() -> None:
    """And what the old one held is released."""
    handle = locks["default"].obtain("nightly-report")
    assert handle is not None
    with override_settings(
        OUTBOX_LOCK={"default": {"LOCK": {"BACKEND": dotted(MemoryLock), "OPTIONS": {}}}}
    ):
        assert type(locks["default"]) is MemoryLock
        assert handle.ended


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease": 0.5}, "lease must be a number of at least 1"),
        ({"lease": "60"}, "lease must be"),
        ({"lease": float("nan")}, "at least 1"),
        ({"lease": True}, "at least 1"),
        ({"namespace": None}, "namespace must be a str"),
        ({"session_using": "nowhere"}, "names no database alias: 'nowhere'"),
        ({"leese": 5}, "Did you mean 'lease'"),
        ({"leave_to_expire": "yes"}, "must be True or False"),
    ],
)
@once
def test_wrong_options_name_their_path(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message) as caught:
        locking.build("default", settings(LeaseTableLock, **options))
    assert f"{PATH}['OPTIONS']" in str(caught.value)


@once
def test_an_option_of_one_backend_needs_that_backend() -> None:
    """When the vendor chooses, nobody knows whose option it would be."""
    with pytest.raises(InvalidSettings, match=r"set OUTBOX_LOCK.*\['BACKEND'\] too"):
        locking.build("default", settings(leave_to_expire=True))


@once
def test_an_option_that_every_backend_has_is_recognized_when_it_is_mistyped() -> None:
    with pytest.raises(InvalidSettings, match=r"\['leese'\] is not known. Did you mean 'lease'\?"):
        locking.build("default", settings(leese=5))


@once
@pytest.mark.parametrize("room", locking.BY_VENDOR.values())
def test_a_lock_of_another_database_is_refused_without_asking_it(room: str) -> None:
    with pytest.raises(InvalidSettings, match=r"\['BACKEND'\].* and the database 'default' is 'sq"):
        locking.build("default", BackendSettings(PATH, room, {}))


# lock and single_instance; the contract has the rest


@once
def test_a_name_is_asked_for_where_single_instance_is_written() -> None:
    with pytest.raises(TypeError, match="takes the name of a lock, not <built-in"):
        single_instance(print)  # type: ignore[arg-type]


@once
def test_a_time_out_is_a_number_of_seconds() -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds, not datetime"):
        lock("nightly", timeout=dt.timedelta(seconds=1))  # type: ignore[arg-type]


@once
@pytest.mark.parametrize("make", [lock, lock_all, single_instance])
def test_what_is_wrong_is_told_where_it_is_written(make: Callable[..., object]) -> None:
    """Not at the first call, in the night, nor by a job that never runs."""
    for name in ("", "x" * 256, "nul\0"):
        with pytest.raises(ValueError, match="resource"):
            make(name)
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            make("nightly", timeout=timeout)
    with pytest.raises(TypeError, match="timeout"):
        make("nightly", timeout=None)


def test_a_holder_by_another_backend_is_named() -> None:
    """E16: the refusal tells that two backends are at work."""
    strange = (LeaseTableLock if type(locks["default"]) is not LeaseTableLock else MemoryLock)(
        "default", lease=30
    )
    assert strange.obtain("nightly-report")
    with pytest.raises(LockNotObtained, match="two backends") as busy, lock("nightly-report"):
        pass
    assert busy.value.resource == "nightly-report"
    strange.close()


def test_a_lock_can_be_used_again() -> None:
    nightly = lock("nightly-report")
    for token in (1, 2):
        with nightly as handle:
            assert handle.token == token


def test_one_lock_object_in_two_threads() -> None:
    """The refused thread does not take the handle away from the one that holds."""
    nightly, refusals = lock("nightly-report"), []

    def enter() -> None:
        try:
            nightly.__enter__()
        except LockNotObtained as busy:
            refusals.append(busy)
        finally:
            connections.close_all()

    with nightly as handle:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(10)
    assert len(refusals) == 1
    assert handle.ended
    assert not handle.lost


def test_a_release_in_the_body_is_no_loss() -> None:
    with lock("nightly-report") as handle:
        assert handle.release()


def test_a_refused_function_is_logged(package_log: pytest.LogCaptureFixture) -> None:
    @single_instance("nightly-report")
    def report() -> str:
        return "written"

    with lock("nightly-report"):
        assert report() is None
    (record,) = [r for r in package_log.records if "was not run" in r.getMessage()]
    assert record.levelno == logging.INFO
    assert "report was not run: nightly-report is held by" in record.getMessage()
    assert report() == "written"


def test_the_functions_own_refusal_is_not_taken_for_a_busy_lock() -> None:
    """Only the function's own lock makes it return None."""

    @single_instance("nightly-report")
    def report() -> None:
        raise LockNotObtained("of something else")

    with pytest.raises(LockNotObtained, match="of something else"):
        report()


def test_a_function_that_lost_its_lock_raises() -> None:
    @single_instance("nightly-report")
    def report() -> None:
        lose("nightly-report")

    with pytest.raises(LockLost):
        report()


@pytest.mark.parametrize("make", [lock, lock_all])
def test_what_is_in_a_block_that_lost_its_lock_serves_no_second_one(
    make: Callable[..., Any],
) -> None:
    """The end of the first one would release the lock of the second, and nobody would be told."""
    nightly = make("nightly-report", timeout=5)
    nightly.__enter__()
    lose("nightly-report")
    with pytest.raises(RuntimeError, match="in a block already"):
        nightly.__enter__()
    assert len(locks["default"]._held) == 0
    with pytest.raises(LockLost):
        nightly.__exit__(None, None, None)
    with nightly:
        pass


@pytest.mark.parametrize("make", [lock, lock_all])
def test_what_is_in_a_coroutine_that_lost_its_lock_serves_no_second_one(
    make: Callable[..., Any],
) -> None:
    nightly = make("nightly-report", timeout=5)

    async def scenario() -> None:
        async with nightly:
            await sync_to_async(lose)("nightly-report")
            with pytest.raises(RuntimeError, match="in a block already"):
                await nightly.__aenter__()
            assert len(locks["default"]._held) == 0

    with pytest.raises(LockLost):
        async_to_sync(scenario)()


def test_in_an_event_loop_it_says_what_to_do() -> None:
    """Also when the session is open already, where no driver's guard would notice."""

    def hold_both() -> None:
        with lock_all("nightly-report", "weekly-report"):
            pass

    async def scenario() -> None:
        await sync_to_async(hold_both)()
        for make in (lock, lock_all):
            with pytest.raises(SynchronousOnlyOperation, match="async with"):
                make("nightly-report").__enter__()
        with pytest.raises(SynchronousOnlyOperation, match=r"aobtain\(\)"):
            locks["default"].obtain("nightly-report")
        async with lock("nightly-report"):
            pass

    async_to_sync(scenario)()


def test_a_generator_is_refused_where_it_is_decorated() -> None:
    """Its body would run after the release, and a call that is refused gives None to iterate."""

    def pages() -> Iterator[int]:
        yield 1

    async def apages() -> AsyncIterator[int]:
        yield 1

    for function in (pages, apages):
        with pytest.raises(TypeError, match="pages is a generator"):
            single_instance("nightly-report")(function)


class Report:
    """Work that is an object."""

    def __call__(self) -> str:
        return "written"


class AsyncReport:
    async def __call__(self) -> LockState:
        return (await sync_to_async(locks["default"].holders)())[0].state


@pytest.mark.parametrize("report", [functools.partial(str, "written"), Report()])
def test_work_without_a_name(
    report: Callable[[], str], package_log: pytest.LogCaptureFixture
) -> None:
    """A partial and an object: where it is busy, too, which used to be an AttributeError."""
    single = single_instance("nightly-report")(report)
    assert single() == "written"
    with lock("nightly-report"):
        assert single() is None
    assert f"{report!r} was not run" in package_log.text


@pytest.mark.parametrize("report", [AsyncReport(), functools.partial(AsyncReport().__call__)])
def test_work_that_is_an_asynchronous_object(report: Callable[[], Any]) -> None:
    """The lock is held while it runs, and not while its coroutine is made."""
    single: Any = single_instance("nightly-report")(report)
    assert async_to_sync(single)() is LockState.HELD


def test_a_coroutine_that_comes_out_of_a_plain_function() -> None:
    """A decorator in between hides that it is asynchronous: it would run without the lock."""
    ran = []

    async def report() -> None:
        ran.append(1)

    def decorated() -> Any:
        return report()

    with pytest.raises(TypeError, match=r"decorated gave a coroutine, .* right above the async"):
        single_instance("nightly-report")(decorated)()
    assert not ran
    with lock("nightly-report"):
        pass


@once
@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_the_order_of_decorators(kind: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=f"Put single_instance below @{kind.__name__}"):
        single_instance("nightly-report")(kind(print))
    with pytest.raises(TypeError, match="must be a function, not 'report'"):
        single_instance("nightly-report")("report")  # type: ignore[arg-type]


def test_methods() -> None:
    class Reports:
        @classmethod
        @single_instance("nightly-report")
        def nightly(cls) -> type:
            return cls

        @single_instance("weekly-report")
        def weekly(self) -> Reports:
            return self

    assert Reports.nightly() is Reports
    reports = Reports()
    assert reports.weekly() is reports
