"""Leases in MongoDB: on SecantusDB, which speaks its protocol."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import uuid
import warnings
from typing import TYPE_CHECKING, Any

import pymongo
import pytest

from django_outbox_lock.backends.locks.mongodb import MongoDBLock
from django_outbox_lock.backends.locks.store import Owner
from django_outbox_lock.exceptions import LockUnavailable
from tests.locks.storefaults import StoreFaults
from tests.locks.stores import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.queues import SimpleQueue
    from multiprocessing.synchronize import Barrier

    from pymongo.collection import Collection

    from tests import servers
    from tests.locks.conftest import Make

    Rooms = Callable[..., MongoDBLock]
    Documents = Collection[dict[str, Any]]


@pytest.mark.server("secantusdb")
class TestContract(StoreContract):
    backend_class = MongoDBLock
    server_name = "secantusdb"

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return {"url": server.url}


if "MONGODB_URL" in os.environ:

    @pytest.mark.server("sqlite")
    class TestContractOnTheGivenServer(StoreContract):
        backend_class = MongoDBLock

        def place(self, running_server: Callable[[str], servers.Server]) -> dict[str, Any]:
            return {"url": os.environ["MONGODB_URL"], "database": "outbox_lock_tests"}


@pytest.mark.server("secantusdb")
class TestFaults(StoreFaults):
    backend_class = MongoDBLock
    server_name = "secantusdb"
    requests = {"acquire": b"$replaceWith", "extend": b"$toDate", "vacate": b"released_by"}

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return {"url": server.url}


@pytest.fixture
def rooms(make: Make) -> Rooms:
    namespace = uuid.uuid4().hex

    def build(server: servers.Server, **options: Any) -> MongoDBLock:
        given = {"namespace": namespace, "url": server.url, **options}
        room = make(MongoDBLock, **given)
        assert isinstance(room, MongoDBLock)
        return room

    return build


@pytest.fixture
def server(running_server: Callable[[str], servers.Server]) -> servers.Server:
    return running_server("secantusdb")


@pytest.fixture
def documents(server: servers.Server) -> Iterator[Documents]:
    with pymongo.MongoClient[dict[str, Any]](server.url, tz_aware=True) as client:
        yield client["outbox_lock"]["outbox_locks"]


@pytest.mark.server("secantusdb")
@pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])
class TestTheDocument:
    def test_it_stays_after_the_release(
        self, rooms: Rooms, server: servers.Server, documents: Documents
    ) -> None:
        """It is marked as free; who held it can still be read."""
        handle = rooms(server).obtain("$nightly 'report'")
        assert handle is not None
        held = documents.find_one({"_id": handle.store_key})
        assert held is not None
        assert (held["owner"], held["resource"]) == (handle.lock_id, "$nightly 'report'")
        assert 30 <= (held["expires"] - held["acquired"]).total_seconds() < 35
        assert handle.release()
        free = documents.find_one({"_id": handle.store_key})
        assert free is not None
        assert (free["owner"], free["pid"]) == (None, held["pid"])

    def test_a_renewal_goes_to_one_lease_from_now(
        self, rooms: Rooms, server: servers.Server, documents: Documents
    ) -> None:
        """Case 075: renewals do not add up."""
        room = rooms(server)
        handle = room.obtain("nightly-report")
        assert handle is not None
        for _ in range(3):
            assert room.renew(handle)
        held = documents.find_one({"_id": handle.store_key})
        assert held is not None
        left = held["expires"].timestamp() - server.wall_clock()
        assert 25 < left <= 30.1

    def test_an_end_beyond_two_leases_is_no_end(
        self, rooms: Rooms, server: servers.Server, documents: Documents
    ) -> None:
        """A primary whose clock is behind would keep everybody out for as long as it is behind."""
        first = rooms(server).obtain("nightly-report")
        assert first is not None
        later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        documents.update_one({"_id": first.store_key}, {"$set": {"expires": later}})
        assert rooms(server).obtain("nightly-report") is not None

    def test_a_late_release_frees_nobody_elses(
        self, rooms: Rooms, server: servers.Server, documents: Documents
    ) -> None:
        """Case 063: the lease has passed, another holds, and the late one is told so."""
        first = rooms(server).obtain("nightly-report")
        assert first is not None
        past = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
        documents.update_one({"_id": first.store_key}, {"$set": {"expires": past}})
        rival = rooms(server)
        second = rival.obtain("nightly-report")
        assert second is not None
        assert not first.release()
        assert rival.prove(second)

    def test_what_somebody_else_has_written_there(
        self, rooms: Rooms, server: servers.Server, documents: Documents
    ) -> None:
        """It is shown without a holder; what never expires is nobody's, and is overwritten."""
        room = rooms(server)
        theirs = {"namespace": room.namespace, "owner": "theirs"}
        document = {"_id": room.store_key("nightly-report"), **theirs}
        soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
        documents.insert_one({**document, "expires": soon, "lease": 30_000})
        assert room.obtain("nightly-report") is None
        assert [live.pid for live in room.live()] == [None]
        documents.replace_one({"_id": document["_id"]}, theirs)
        assert room.obtain("nightly-report") is not None

    def test_namespaces_do_not_see_each_other(self, rooms: Rooms, server: servers.Server) -> None:
        room, other = rooms(server), rooms(server, namespace=uuid.uuid4().hex)
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert list(other.live()) == []
        (live,) = room.live()
        assert live.store_key == handle.store_key


@pytest.mark.server("secantusdb")
class TestTheCollection:
    def test_provision(self, rooms: Rooms, server: servers.Server) -> None:
        room = rooms(server, collection=f"locks-{uuid.uuid4().hex}")
        assert "does not exist" in str(room.missing())
        assert "made" in room.provision()
        assert room.missing() is None
        assert "was there" in room.provision()

    def test_one_winner_in_a_collection_that_is_not_there(self, server: servers.Server) -> None:
        """Case 067: 20 processes, 100 rounds, each on a collection that nobody has made."""
        places = [f"fresh-{uuid.uuid4().hex}" for _ in range(ROUNDS)]
        context = multiprocessing.get_context("fork")
        barrier, answers = context.Barrier(RACERS), context.SimpleQueue()
        racers = [
            context.Process(target=race, args=(server.url, places, barrier, answers))
            for _ in range(RACERS)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forking with threads
            for racer in racers:
                racer.start()
        won = [answers.get() for _ in racers]
        for racer in racers:
            racer.join(30)
        assert [sum(each) for each in zip(*won, strict=True)] == [1] * ROUNDS


RACERS, ROUNDS = 20, 100


def race(url: str, places: list[str], barrier: Barrier, answers: SimpleQueue[list[bool]]) -> None:
    """A process that wants one lease in each place, at the same time as the others."""
    won = []
    for place in places:
        room = MongoDBLock("default", url=url, namespace="race", collection=place, timeout=20.0)
        barrier.wait(60)
        won.append(room.acquire(room.store_key("new"), Owner(uuid.uuid4().hex, "new")))
        room.disconnect()
    answers.put(won)


@pytest.mark.server("secantusdb")
@pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])
def test_killed_and_restarted_while_held(
    private_server: Callable[..., servers.Server], rooms: Rooms
) -> None:
    """The document is on the server's disk: the lock is held as before."""
    server = private_server("secantusdb")
    room = rooms(server, timeout=1.0)
    handle = room.obtain("nightly-report")
    assert handle is not None
    server.kill()
    with pytest.raises(LockUnavailable, match="MongoDB gave no answer"):
        room.renew(handle)
    assert not handle.lost
    server.start()
    assert room.renew(handle)
    assert rooms(server).obtain("nightly-report") is None
    assert handle.release()


def test_what_a_url_says_of_time_and_repetitions() -> None:
    """DocumentDB and Cosmos DB refuse retryable writes, and give out URLs that switch them off."""
    url = "mongodb://127.0.0.1:1/?w=0&timeoutMS=1&wTimeoutMS=9"
    for more, repeats in (("", True), ("&retryWrites=false", False)):
        room = MongoDBLock("default", url=url + more)
        assert room._client.options.retry_writes is repeats
        assert room._client.options.timeout is None
        assert room._collection.write_concern.document == {
            "w": "majority",
            "j": True,
            "wtimeout": 2000,
        }
        room.close()
