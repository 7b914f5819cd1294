"""A database that does not answer keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from django_outbox_lock import locks
from django_outbox_lock.admin import looking
from django_outbox_lock.holder import LockState
from tests.admin.conftest import url_of
from tests.factories import LockFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client

    from tests.conftest import WaitUntil

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask in a thread on SQLite, too: here it is a file, which takes a second connection."""
    monkeypatch.setattr(connection.features, "test_db_allows_multiple_connections", True)


@pytest.fixture
def silent(
    threads: None, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> Iterator[list[int]]:
    """The lock store hangs; gives the questions that it was asked."""
    answer = threading.Event()
    asked: list[int] = []

    def holders() -> list[object]:
        asked.append(threading.get_ident())
        answer.wait(30)
        return []

    monkeypatch.setattr(locks["default"], "holders", holders)
    yield asked
    answer.set()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("outbox-admin")])


def test_the_registry_is_shown_as_not_verified_within_the_limit(
    root: Client, silent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "LIMIT", 0.5)
    LockFactory.create(resource="OutboxSweeper", held=True)
    began = time.monotonic()
    (look,) = looking.look_at(["default"], 0.5)
    assert time.monotonic() - began < 0.5 + 5  # of thirty
    assert [holder.state for holder in look.holders] == [LockState.UNVERIFIED]
    assert look.problem == "no answer within 0.5 s"
    assert look.now is not None
    page = root.get(url_of("lock"))
    assert page.status_code == 200
    assert "not verified" in page.content.decode()
    assert len(silent) == 1  # no second question before the first is answered


def test_an_answer_in_time_is_verified_on_a_connection_of_its_own(threads: None) -> None:
    LockFactory.create(resource="report", held=True)
    (look,) = looking.look_at(["default"])
    assert [holder.state for holder in look.holders] == [LockState.HELD]
    assert look.problem == ""
    assert not [t for t in threading.enumerate() if t.name.startswith("outbox-admin")]
