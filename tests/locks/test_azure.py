"""Leases on blobs of Azure Storage: on Azurite, Microsoft's emulator."""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

import pytest
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobLeaseClient, BlobServiceClient

from django_outbox_lock.backends.locks.azure import AzureBlobLock
from django_outbox_lock.backends.locks.store import Owner
from django_outbox_lock.exceptions import LockUnavailable
from tests.locks.storefaults import StoreFaults
from tests.locks.stores import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure.storage.blob import ContainerClient

    from tests import servers
    from tests.locks.conftest import Make
    from tests.servers.azurite import Azurite

    Rooms = Callable[..., AzureBlobLock]

needs_azurite = pytest.mark.server("azurite")
in_database = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])


def provisioned(server: servers.Server) -> dict[str, Any]:
    options: dict[str, Any] = {"connection_string": cast("Azurite", server).connection_string}
    AzureBlobLock("default", namespace="any", **options).provision()
    return options


@needs_azurite
class TestContract(StoreContract):
    backend_class = AzureBlobLock
    server_name = "azurite"

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return provisioned(server)


if "AZURE_STORAGE_CONNECTION_STRING" in os.environ:

    @pytest.mark.server("sqlite")
    class TestContractOnTheGivenAccount(StoreContract):
        backend_class = AzureBlobLock

        def place(self, running_server: Callable[[str], servers.Server]) -> dict[str, Any]:
            options: dict[str, Any] = {
                "connection_string": os.environ["AZURE_STORAGE_CONNECTION_STRING"],
                "container": "outbox-lock-tests",
            }
            AzureBlobLock("default", namespace="any", **options).provision()
            return options


class Overloaded(BaseHTTPRequestHandler):
    """Answers each request as the service does when it has too much to do."""

    status, code = 503, "ServerBusy"

    def answer(self) -> None:
        self.send_response(self.status)
        self.send_header("x-ms-error-code", self.code)
        self.send_header("Content-Length", "0")
        self.end_headers()
        cast("Any", self.server).answered.set()

    do_PUT = do_HEAD = do_GET = answer  # noqa: N815 (named by the standard library)

    def log_message(self, *_: object) -> None:
        """The test looks at what comes of it."""


class Deleting(Overloaded):
    """As it does for half a minute and more after a container was deleted; the emulator never."""

    status, code = 409, "ContainerBeingDeleted"


@contextmanager
def overloaded(handler: type[Overloaded] = Overloaded) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.answered = threading.Event()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@needs_azurite
class TestFaults(StoreFaults):
    backend_class = AzureBlobLock
    server_name = "azurite"
    short = 15.0
    requests = {
        "acquire": b"x-ms-lease-action: acquire",
        "extend": b"x-ms-lease-action: renew",
        "vacate": b"x-ms-lease-action: release",
    }

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return provisioned(server)

    def test_one_renewal_gets_a_server_error(self) -> None:
        """Case 071: a 5xx says nothing about the lease; the next renewal follows soon."""
        room = self.room(lease=self.short)
        handle = room.obtain("nightly-report")
        assert handle is not None
        with overloaded() as busy:
            self.proxy.target = busy.server_port
            self.proxy.cut()
            assert busy.answered.wait(10)  # the renewal of the fifth second
            self.proxy.target = self.server.port
            self.proxy.cut()
        before = handle.deadline
        while handle.deadline == before:
            assert not handle.wait_lost(0.05)
        assert handle.release()
        assert self.losses == []

    def test_the_answer_to_the_signature_is_lost(self) -> None:
        """The blob is leased, and its metadata may be written or not."""
        room = self.room()
        self.proxy.truncate_reply(request=b"comp=metadata")
        handle = room.obtain("nightly-report")
        assert self.proxy.wait_struck()
        assert handle is not None
        assert [live.pid for live in self.direct().live()] != []
        assert handle.release()


@pytest.fixture
def server(running_server: Callable[[str], servers.Server]) -> servers.Server:
    return running_server("azurite")


@pytest.fixture
def rooms(make: Make, server: servers.Server) -> Rooms:
    given = {"namespace": uuid.uuid4().hex, **provisioned(server)}

    def build(**options: Any) -> AzureBlobLock:
        room = make(AzureBlobLock, **{**given, **options})
        assert isinstance(room, AzureBlobLock)
        return room

    return build


@pytest.fixture
def container(server: servers.Server) -> Iterator[ContainerClient]:
    connection_string = provisioned(server)["connection_string"]
    with BlobServiceClient.from_connection_string(connection_string) as service:
        yield service.get_container_client("outbox-locks")


def pair(room: AzureBlobLock) -> bool:
    """Obtain and release."""
    handle = room.obtain("nightly-report")
    return handle is not None and handle.release()


def after_the_bump(room: AzureBlobLock, act: Callable[[], object]) -> None:
    """Something happens between the bump of the token and the proof."""
    bump = room._bump

    def bumping(resource: str, lock_id: str, seen: int) -> int | None:
        token = bump(resource, lock_id, seen)
        act()
        return token

    room._bump = bumping  # type: ignore[method-assign]


def note_requests(monkeypatch: pytest.MonkeyPatch, seen: list[str]) -> None:
    """What the client sends is noted: the action of a lease, else the part of the blob."""
    send = RequestsTransport.send

    def sending(self: RequestsTransport, request: Any, **options: Any) -> Any:
        seen.append(request.headers.get("x-ms-lease-action") or request.query["comp"])
        return send(self, request, **options)

    monkeypatch.setattr(RequestsTransport, "send", sending)


def break_lease(container: ContainerClient, key: str) -> None:
    """End whichever lease there is now, as after its time."""
    BlobLeaseClient(container.get_blob_client(key)).break_lease(0)


@needs_azurite
@in_database
class TestTheBlob:
    def test_it_stays_and_tells_who_held_it(self, rooms: Rooms, container: ContainerClient) -> None:
        """Metadata is ASCII only, names are not."""
        handle = rooms().obtain("夜間 report")
        assert handle is not None
        blob = container.get_blob_client(handle.store_key)
        metadata = blob.get_blob_properties().metadata
        assert metadata["resource"] == "%E5%A4%9C%E9%96%93%20report"
        assert metadata["lock_id"] == handle.lock_id
        assert handle.release()
        assert blob.get_blob_properties().lease.state == "available"
        assert blob.get_blob_properties().metadata == metadata

    def test_the_signature_is_the_proof(
        self, rooms: Rooms, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pair on a blob that is there is three requests, and the proof after the bump is one."""
        room, seen = rooms(), list[str]()
        assert pair(room)
        note_requests(monkeypatch, seen)
        after_the_bump(room, lambda: seen.append("bumped"))
        assert pair(room)
        assert seen == ["acquire", "bumped", "metadata", "release"]

    def test_the_lease_is_over_before_the_signature(
        self, rooms: Rooms, container: ContainerClient
    ) -> None:
        """Case 065: nothing is signed that is not held any more, though nobody else has come."""
        first, room = rooms(), rooms()
        assert pair(first)
        key = room.store_key("nightly-report")
        before = container.get_blob_client(key).get_blob_properties().metadata
        after_the_bump(room, lambda: break_lease(container, key))
        assert room.obtain("nightly-report") is None
        assert container.get_blob_client(key).get_blob_properties().metadata == before

    def test_another_holds_before_the_signature(
        self, rooms: Rooms, container: ContainerClient
    ) -> None:
        """Case 065: the late one neither gets the lock nor writes its name over the holder's."""
        late, rival = rooms(), rooms()
        key = late.store_key("nightly-report")
        me = Owner(uuid.uuid4().hex, "nightly-report")

        def overtake() -> None:
            break_lease(container, key)
            assert rival.acquire(key, me)
            assert rival.sign(key, me)

        after_the_bump(late, overtake)
        assert late.obtain("nightly-report") is None
        metadata = container.get_blob_client(key).get_blob_properties().metadata
        assert metadata["lock_id"] == me.lock_id
        assert rival.extend(key, me.lock_id)

    def test_it_is_deleted_by_hand(self, rooms: Rooms, container: ContainerClient) -> None:
        """A definite loss; the next one makes the blob anew."""
        room = rooms()
        handle = room.obtain("nightly-report")
        assert handle is not None
        blob = container.get_blob_client(handle.store_key)
        blob.delete_blob(lease=str(uuid.UUID(handle.lock_id)))
        assert not room.renew(handle)
        assert handle.lost
        successor = rooms().obtain("nightly-report")
        assert successor is not None
        assert successor.token > handle.token

    def test_a_late_release_frees_nobody_elses(
        self, rooms: Rooms, container: ContainerClient
    ) -> None:
        """Case 063: the lease is over, another holds, and the late one is told so."""
        first = rooms().obtain("nightly-report")
        assert first is not None
        container.get_blob_client(first.store_key).acquire_lease(
            lease_id=str(uuid.UUID(first.lock_id))
        ).break_lease(0)
        rival = rooms()
        second = rival.obtain("nightly-report")
        assert second is not None
        assert not first.release()
        assert rival.prove(second)

    def test_a_force_release_that_comes_late_hits_nobody(
        self, rooms: Rooms, container: ContainerClient
    ) -> None:
        """It names the lease of the holder that was seen: a successor's is left alone."""
        one, two = rooms(), rooms()
        first = one.obtain("nightly-report")
        assert first is not None
        (seen,) = two.holders()
        assert first.release()
        second = two.obtain("nightly-report")
        assert second is not None
        one.end_by_force("nightly-report", seen)
        assert two.prove(second)

    def test_namespaces_do_not_see_each_other(self, rooms: Rooms) -> None:
        room, other = rooms(), rooms(namespace=uuid.uuid4().hex)
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert list(other.live()) == []
        (live,) = room.live()
        assert live.store_key == handle.store_key
        assert live.pid


@needs_azurite
@in_database
class TestTheContainer:
    def test_provision(self, rooms: Rooms) -> None:
        room = rooms(container=f"locks-{uuid.uuid4().hex}")
        assert "does not exist" in str(room.missing())
        with pytest.raises(LockUnavailable, match=r"does not exist: run 'manage.py outbox provis"):
            room.obtain("nightly-report")
        assert "made" in room.provision()
        assert room.missing() is None
        assert "was there" in room.provision()
        assert room.obtain("nightly-report") is not None

    def test_one_that_is_being_deleted(self, rooms: Rooms, server: servers.Server) -> None:
        """It is not there, and cannot be made yet."""
        key = cast("Azurite", server).key
        with overloaded(Deleting) as service:
            url = f"http://127.0.0.1:{service.server_port}/outbox"
            room = rooms(connection_string=None, account_url=url, credential=key)
            with pytest.raises(LockUnavailable):
                room.provision()
            with pytest.raises(LockUnavailable):
                room.obtain("nightly-report")

    def test_an_account_url_and_a_key(self, rooms: Rooms, server: servers.Server) -> None:
        azurite = cast("Azurite", server)
        room = rooms(connection_string=None, account_url=azurite.url, credential=azurite.key)
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert handle.release()

    def test_a_wrong_key(self, rooms: Rooms, server: servers.Server) -> None:
        room = rooms(
            connection_string=None, account_url=cast("Azurite", server).url, credential="d3Jvbmc="
        )
        with pytest.raises(LockUnavailable, match="Azure Storage refused"):
            room.obtain("nightly-report")


@needs_azurite
@in_database
def test_killed_and_restarted_while_held(
    private_server: Callable[..., servers.Server], make: Make
) -> None:
    """The emulator forgets what was young, the service does not: held or lost, never both."""
    server = private_server("azurite")
    room = make(AzureBlobLock, namespace="any", timeout=1.0, **provisioned(server))
    handle = room.obtain("nightly-report")
    assert handle is not None
    server.kill()
    with pytest.raises(LockUnavailable, match="Azure Storage gave no answer"):
        room.renew(handle)
    assert not handle.lost
    server.start()
    rival = make(AzureBlobLock, namespace="any", **provisioned(server))
    successor = rival.obtain("nightly-report")
    assert (successor is None) == room.prove(handle)
    if successor is not None:
        assert successor.token > handle.token
