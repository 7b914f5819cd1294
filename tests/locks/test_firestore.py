"""Leases in Firestore, on Google's emulator where it is found.

Lost answers are made in the room's one place that writes; the rest is the emulator's own doing.
"""

from __future__ import annotations

import datetime as dt
import os
import runpy
import sys
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from google.api_core import exceptions as google_errors

from django_outbox_lock.backends.locks import firestore
from django_outbox_lock.backends.locks.firestore import FirestoreLock
from django_outbox_lock.backends.locks.store import Owner
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.testing.lock_items.base import in_threads, no_answer
from tests.locks.stores import StoreContract
from tests.servers.firestore import PROJECT, Firestore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests import servers
    from tests.conftest import WaitUntil
    from tests.locks.conftest import Make

    RunningServer = Callable[[str], servers.Server]
    NewRoom = Callable[..., FirestoreLock]

on_firestore = pytest.mark.server("firestore")
KEY = "the-report"


@pytest.fixture
def emulator(running_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Firestore:
    server = running_server("firestore")
    assert isinstance(server, Firestore)
    monkeypatch.setenv("FIRESTORE_EMULATOR_HOST", server.host)
    server.wall_clock()  # the first answer of a fresh virtual machine takes seconds
    return server


@on_firestore
class TestContract(StoreContract):
    backend_class = FirestoreLock
    server_name = "firestore"

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return {"project": PROJECT}

    @pytest.fixture(autouse=True)
    def _emulator(self, emulator: Firestore) -> None:
        """The client finds it by its variable."""


if "FIRESTORE_PROJECT" in os.environ:

    @pytest.mark.server("sqlite")
    class TestContractOnTheGivenProject(StoreContract):
        """The credentials are where Google's libraries look for them."""

        backend_class = FirestoreLock

        def place(self, running_server: RunningServer) -> dict[str, Any]:
            return {
                "project": os.environ["FIRESTORE_PROJECT"],
                "database": os.environ.get("FIRESTORE_DATABASE"),
                "collection": "outbox-lock-tests",
            }


@pytest.fixture
def new_room(make: Make, emulator: Firestore) -> NewRoom:
    """A function that makes one more room of the same store."""
    options = {"project": PROJECT, "namespace": uuid.uuid4().hex, "collection": uuid.uuid4().hex}

    def new(**changes: Any) -> FirestoreLock:
        room = make(FirestoreLock, **{**options, **changes})
        assert isinstance(room, FirestoreLock)
        return room

    return new


def owner() -> Owner:
    return Owner(uuid.uuid4().hex, "nightly-report")


def lose_answers(room: FirestoreLock, *faults: tuple[bool, Exception]) -> None:
    """Have the next writes fail: each after it was applied (True) or unsent (False)."""
    left, put = list(faults), room._put

    def losing(*args: Any) -> dt.datetime:
        if not left:
            return put(*args)
        applied, error = left.pop(0)
        if applied:
            put(*args)
        raise error

    room._put = losing  # type: ignore[assignment, method-assign]


def acts(room: FirestoreLock, me: Owner) -> list[Callable[[], bool]]:
    """Taking, renewing and ending a lease."""
    return [
        lambda: room.acquire(KEY, me),
        lambda: room.extend(KEY, me.lock_id),
        lambda: room.vacate(KEY, me.lock_id),
    ]


errors: Any = google_errors  # whose constructors have no types
LATE, GONE = errors.DeadlineExceeded("for the test"), errors.ServiceUnavailable("for the test")
REPEATED, CONTENDED = errors.AlreadyExists("for the test"), errors.Aborted("for the test")


@on_firestore
@pytest.mark.parametrize("error", [LATE, GONE, REPEATED])
def test_an_answer_that_got_lost(new_room: NewRoom, error: Exception) -> None:
    """It is read back: the nonce tells. The last: a repetition on the way hid the success."""
    room, me = new_room(), owner()
    for act in acts(room, me):
        lose_answers(room, (True, error))
        assert act() is True
    assert room.vacate(KEY, me.lock_id) is False
    assert new_room().acquire(KEY, owner())


@on_firestore
def test_what_was_not_heard_of_is_unknown(new_room: NewRoom) -> None:
    """Neither busy nor lost: the caller asks again."""
    room, me = new_room(), owner()
    for act in acts(room, me):
        lose_answers(room, (False, LATE))
        with pytest.raises(LockUnavailable, match="Firestore failed"):
            act()
        assert act() is True


@on_firestore
def test_contention(new_room: NewRoom) -> None:
    """Case 077: busy for who wants the lease; its owner tries again, a few times."""
    room, me = new_room(), owner()
    lose_answers(room, (False, CONTENDED))
    assert room.acquire(KEY, me) is False
    assert room.acquire(KEY, me) is True
    lose_answers(room, (False, CONTENDED), (False, CONTENDED))
    assert room.extend(KEY, me.lock_id) is True
    lose_answers(room, *[(False, CONTENDED)] * 3)
    with pytest.raises(LockUnavailable, match="too many"):
        room.extend(KEY, me.lock_id)


@on_firestore
def test_a_renewal_that_failed_is_made_again(new_room: NewRoom) -> None:
    """Case 069."""
    room = new_room(lease=3.0)
    handle = room.obtain("nightly-report")
    assert handle is not None
    lose_answers(room, (False, GONE), (True, LATE), (False, GONE))
    assert not handle.wait_lost(4.0)
    assert handle.release()


@on_firestore
def test_one_winner_of_twenty(new_room: NewRoom) -> None:
    """Case 067, for a new document and for the lease of a dead holder."""
    twenty = [new_room() for _ in range(20)]
    for key in ("one", "two", "three"):
        won = in_threads([partial(room.acquire, key, owner()) for room in twenty])
        assert won.count(True) == 1
        expire(twenty[0], key)
        won = in_threads([partial(room.acquire, key, owner()) for room in twenty])
        assert won.count(True) == 1


def expire(room: FirestoreLock, key: str) -> None:
    """Write a lease of no length in the place of the holder's."""
    room._document(key).update({"lease": 0})


@on_firestore
def test_ten_take_turns(new_room: NewRoom) -> None:
    """Case 077: under contention nobody fails, and all come to their turn."""

    def work(room: FirestoreLock) -> bool:
        handle = room.obtain("nightly-report", timeout=60)
        return handle is not None and handle.release()

    ten = [new_room() for _ in range(10)]
    assert in_threads([partial(work, room) for room in ten]) == [True] * 10


@on_firestore
def test_the_late_holder_releases_nothing(new_room: NewRoom) -> None:
    """Case 063."""
    late_room = new_room(lease=3.0)
    late_room.prove_once = no_answer  # type: ignore[method-assign]
    late = late_room.obtain("nightly-report")
    assert late is not None
    second = new_room().obtain("nightly-report", timeout=15)
    assert second is not None
    assert late.release() is False
    assert late_room.vacate(late.store_key, late.lock_id) is False
    assert new_room().obtain("nightly-report") is None
    assert second.release()


@on_firestore
def test_tries_that_do_not_wait_take_over(new_room: NewRoom, wait_until: WaitUntil) -> None:
    """Case 073: the server's clock needs no watching, so a fresh process takes over, too."""
    dead = new_room(lease=3.0)
    key = dead.store_key("nightly-report")
    assert dead.acquire(key, owner())
    assert wait_until(lambda: new_room().acquire(key, owner()), 15, "a try that succeeds")
    found = dead._read(key)
    assert found.get("acquired_at") >= found.create_time + dt.timedelta(seconds=3)


@on_firestore
def test_the_document_stays(new_room: NewRoom) -> None:
    """It is never deleted, and tells who was the last."""
    room = new_room()
    handle = room.obtain("nightly-report")
    assert handle is not None
    assert handle.release()
    card = room._read(handle.store_key).to_dict()
    assert card["owner"] is None
    assert (card["resource"], card["pid"]) == ("nightly-report", os.getpid())


@on_firestore
def test_a_document_deleted_by_hand_is_a_loss(new_room: NewRoom) -> None:
    room = new_room()
    handle = room.obtain("nightly-report")
    assert handle is not None
    room._document(handle.store_key).delete()
    assert room.renew(handle) is False
    assert handle.lost
    assert new_room().obtain("nightly-report") is not None


@on_firestore
def test_namespaces_do_not_meet(new_room: NewRoom) -> None:
    """Neither in what they lock nor in what they list."""
    one, two = new_room(), new_room(namespace="another")
    for room in (one, two):
        assert room.acquire(room.store_key("nightly-report"), owner())
    assert [live.store_key for live in two.live()] == [two.store_key("nightly-report")]


@on_firestore
def test_what_somebody_else_has_written_there(new_room: NewRoom) -> None:
    """It is shown without a holder; what names no lease has none, and is overwritten."""
    room = new_room()
    document = room._document(room.store_key("nightly-report"))
    document.set({"namespace": room.namespace, "owner": "theirs", "lease": 60})
    assert room.obtain("nightly-report") is None
    assert [live.pid for live in room.live()] == [None]
    for lease in (None, "60", True, -1, float("nan"), 1e30):
        document.set({"namespace": room.namespace, "owner": "theirs", "lease": lease})
        assert list(room.live()) == []
        handle = room.obtain("nightly-report")
        assert handle is not None
        document.set({"of": "somebody else"})
        assert not room.prove(handle)
        assert not handle.release()


@on_firestore
def test_its_channel_is_closed_with_it(new_room: NewRoom) -> None:
    """Although somebody refers to it yet, as a kept error does; a call comes to its end first."""
    room = new_room()
    with room._telling():
        document = room._document(KEY)
        document.get(**room._call)
        room.close()
        document.get(**room._call)
    with pytest.raises(ValueError, match="Channel closed"):
        document.get(**room._call)
    assert room.acquire(KEY, owner())


@on_firestore
def test_there_is_nothing_to_provision(new_room: NewRoom) -> None:
    room = new_room()
    assert room.missing() is None
    assert room.provision() == "firestore: there is nothing to provision"


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is bounded by ``timeout`` and no refusal."""
    monkeypatch.setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1")
    room = FirestoreLock("default", project=PROJECT, timeout=1.0)
    for ask in (lambda: room.acquire(KEY, owner()), room.missing, room.provision):
        with pytest.raises(LockUnavailable, match="Firestore failed"):
            ask()
    room.close()


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client cannot even be made: unavailable, with the library's own words."""
    monkeypatch.delenv("FIRESTORE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/credentials.json")
    with pytest.raises(LockUnavailable, match="/nowhere/credentials"):
        FirestoreLock("default", project=PROJECT).acquire(KEY, owner())


def test_the_client_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.firestore", None)
    monkeypatch.delattr("google.cloud.firestore", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'django-outbox-lock\[firestore\]'"):
        runpy.run_path(firestore.__file__)
