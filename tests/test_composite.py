"""``lock_all``: several resources, all of them or none; the contract has the rest."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections

from django_outbox_lock import LockLost, LockNotObtained, LockTimeout, lock_all, locks
from django_outbox_lock.testing.lock_items.base import fail, in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import WaitUntil

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

once = pytest.mark.server("sqlite")


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    locks.close()


def held() -> set[str]:
    return {handle.resource for handle in locks["default"]._keeper.handles()}


@once
@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ((), ValueError, "at least one"),
        (("a", "b", "a"), ValueError, r"'a' more than once"),
        (("caf\u00e9", "cafe\u0301"), ValueError, "more than once"),
        (("a", ""), ValueError, "resource must have"),
        (("a", None), TypeError, "resource must be a str"),
    ],
)
def test_wrong_names_are_told_at_once(
    names: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """Before anything is obtained; one name in two spellings is one name."""
    with pytest.raises(error, match=message):
        lock_all(*names)


def test_a_wrong_timeout_obtains_nothing() -> None:
    with pytest.raises(ValueError, match="timeout"):
        lock_all("a", "b", timeout=-1).__enter__()
    assert held() == set()


def test_they_are_obtained_in_the_order_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the caller's order is, which is that of the handles."""
    backend, asked = locks["default"], []
    real = backend.take

    def take(resource: str, lock_id: str) -> Any:
        asked.append(resource)
        return real(resource, lock_id)

    monkeypatch.setattr(backend, "take", take)
    with lock_all("b", "c", "a") as handles:
        assert asked == ["a", "b", "c"]
        assert [handle.resource for handle in handles] == ["b", "c", "a"]
        assert held() == {"a", "b", "c"}
    assert held() == set()


def test_callers_in_opposite_order_do_not_wait_for_each_other() -> None:
    """Each of them gets both, again and again, long before the time-out."""
    total = [0]

    def both(*names: str) -> Callable[[], None]:
        def work() -> None:
            for _ in range(5):
                with lock_all(*names, timeout=60):
                    seen = total[0]
                    time.sleep(0.002)
                    total[0] = seen + 1

        return work

    begin = time.monotonic()
    in_threads([both("a", "b"), both("b", "a")])
    assert total == [10]
    assert time.monotonic() - begin < 50


def test_the_timeout_is_for_all_of_them() -> None:
    """The wait for the second counts against what the first has left; the busy one is named."""
    busy = locks["default"].obtain("b")
    assert busy is not None
    begin = time.monotonic()
    with pytest.raises(
        LockTimeout, match=r"b is held by .* It did not come free within"
    ) as refused:
        lock_all("a", "b", "c", timeout=0.3).__enter__()
    assert 0.3 <= time.monotonic() - begin < 10
    assert refused.value.resource == "b"
    assert refused.value.holder is not None
    assert refused.value.holder.token == busy.token
    assert held() == {"b"}


def test_an_error_on_the_way_releases_what_was_obtained(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = locks["default"]
    real = backend.take

    def take(resource: str, lock_id: str) -> Any:
        if resource == "b":
            fail()
        return real(resource, lock_id)

    monkeypatch.setattr(backend, "take", take)
    with pytest.raises(ZeroDivisionError):
        lock_all("a", "b").__enter__()
    assert held() == set()


def test_what_is_lost_while_the_others_are_waited_for() -> None:
    """The body does not begin without one of them."""
    backend = locks["default"]
    busy = backend.obtain("b")
    assert busy is not None

    def end() -> None:
        while "a" not in held():
            time.sleep(0.01)
        first = backend._own("a")
        assert first is not None
        first.lose("for the test")
        busy.release()
        connections.close_all()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(LockLost, match=r"^a: "):
        lock_all("a", "b", timeout=30).__enter__()
    thread.join(10)
    assert held() == set()


def test_an_error_of_the_body_is_not_masked_by_a_loss() -> None:
    def work() -> None:
        with lock_all("a", "b") as handles:
            handles[0].lose("for the test")
            fail()

    with pytest.raises(ZeroDivisionError):
        work()
    assert held() == set()


def test_two_losses_are_one_error() -> None:
    both = lock_all("a", "b")
    for handle in both.__enter__():
        handle.lose("for the test")
    with pytest.raises(LockLost):
        both.__exit__(None, None, None)
    assert held() == set()


def test_it_can_be_used_again() -> None:
    both = lock_all("a", "b")
    for token in (1, 2):
        with both as handles:
            assert [handle.token for handle in handles] == [token, token]


def test_a_cancelled_task_leaves_nothing(wait_until: WaitUntil) -> None:
    """While it waits for the second, it gives back the first."""
    busy = locks["default"].obtain("b")
    assert busy is not None

    async def scenario() -> None:
        waiting = asyncio.create_task(lock_all("a", "b", timeout=60).__aenter__())
        while "a" not in held():  # noqa: ASYNC110 (another thread obtains it)
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async_to_sync(scenario)()
    wait_until(lambda: held() == {"b"}, what="the first is released")


def test_a_loss_in_coroutines() -> None:
    """It is raised at the end, after all were released, and says who holds now."""

    async def scenario() -> LockLost:
        both = lock_all("a", "b")
        handles = await both.__aenter__()
        assert await asyncio.to_thread(handles[0].lose, "for the test")
        with pytest.raises(LockLost) as lost:
            await both.__aexit__(None, None, None)
        return lost.value

    lost = async_to_sync(scenario)()
    assert lost.resource == "a"
    assert lost.holder is not None
    assert held() == set()


def test_a_refusal_in_coroutines() -> None:
    busy = locks["default"].obtain("b")
    assert busy is not None

    async def scenario() -> None:
        with pytest.raises(LockNotObtained, match=r"b is held by .* since ") as refused:
            await lock_all("a", "b").__aenter__()
        assert refused.value.holder is not None

    async_to_sync(scenario)()
    assert held() == {"b"}
