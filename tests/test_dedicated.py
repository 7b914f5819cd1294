"""A session of its own is closed, whichever thread does it and whenever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from django.db import connections

from django_outbox_lock.dedicated import LockSession, SessionLost, dedicated_connection
from django_outbox_lock.testing.lock_items.base import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])


class Late:
    """A mutex; once, something happens when all is done but its release."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._mutex = threading.RLock()
        self._happens = [happens]

    def acquire(self, *, timeout: float) -> bool:
        return self._mutex.acquire(timeout=timeout)

    def release(self) -> None:
        if self._happens:
            self._happens.pop()()
        self._mutex.release()


def test_a_session_that_is_closed_at_the_very_end_of_a_turn() -> None:
    """Who closes does not wait, and the user has looked for the last time: one of them does it."""
    session = LockSession("default", {}, lambda _: "1")
    session._turn._mutex = Late(lambda: in_threads([session.close]))  # type: ignore[assignment]
    with session.use(5) as used:
        session.keys.add("key")
    assert used.connection is None
    assert not session.is_open
    assert not session.keys
    with session.use(5) as another:
        assert another is not used
    session.close()
    assert another.connection is None


def test_a_session_that_was_opened_while_another_was_being_closed() -> None:
    """Who closes had looked before, and forgets the new one: it would go on holding."""
    session = LockSession("default", {}, lambda _: "1")
    with pytest.raises(SessionLost), session.use(5) as used:
        session._wrapper = session._raw = None
    assert used.connection is None


class Pooling:
    """The wrapper of a package with a pool: its sessions do not end when they are closed."""

    def get_new_connection(self, params: dict[str, Any]) -> NoReturn:
        raise AssertionError("the session came from the pool")

    def close(self) -> NoReturn:
        raise AssertionError("the session went back to the pool")


@pytest.mark.parametrize(
    ("package", "options"),
    [("dj_db_conn_pool", {}), ("django_db_geventpool", {"MAX_CONNS": 2, "REUSE_CONNS": 1})],
)
def test_it_comes_from_no_pool_and_goes_back_to_none(
    package: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would go on holding, with our time-outs, for whoever is given it next."""
    connection = connections["default"]
    kind = type(connection)
    mixin = type("Mixin", (Pooling,), {"__module__": f"{package}.backends"})
    pooled = type("Pooled", (mixin, kind), {"__module__": f"{package}.backends.base"})
    own = type("OfTheProject", (pooled,), {})
    settings = {**connection.settings_dict["OPTIONS"], **options}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", settings)
    monkeypatch.setattr(connection, "__class__", own)
    wrapper = dedicated_connection("default", {})
    assert type(wrapper) is kind
    wrapper.connect()
    wrapper.close()
