"""Leases in Redis, on a real server."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis

from django_outbox_lock import fence
from django_outbox_lock.backends.locks.redis import RedisLock
from django_outbox_lock.backends.locks.store import Owner
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from django_outbox_lock.testing.lock_items.base import SLACK
from tests.chaos.proxy import Proxy
from tests.locks.storefaults import StoreFaults
from tests.locks.stores import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests import servers
    from tests.conftest import WaitUntil
    from tests.locks.conftest import Make

    PrivateServer = Callable[..., servers.Server]
    Rooms = Callable[..., RedisLock]

needs_redis = pytest.mark.server("redis")


@needs_redis
class TestContract(StoreContract):
    backend_class = RedisLock
    server_name = "redis"

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return {"url": server.url}


@needs_redis
class TestFaults(StoreFaults):
    backend_class = RedisLock
    server_name = "redis"
    requests = {"acquire": b"'SET'", "extend": b"return redis.call('PEXPIRE'", "vacate": b"'DEL'"}

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return {"url": server.url}

    def test_an_outage_that_is_shorter_than_the_lease(self) -> None:
        """Case 069: the renewal that failed is repeated within the lease, and the lock is kept."""
        room = self.room(lease=3.0)
        handle = room.obtain("nightly-report")
        assert handle is not None
        with self.proxy.down():
            assert not handle.wait_lost(1.5)  # the renewal was due after one second
        assert not handle.wait_lost(3.0)
        assert handle.release()
        assert self.losses == []


@pytest.fixture
def rooms(make: Make) -> Rooms:
    namespace = uuid.uuid4().hex

    def build(**options: Any) -> RedisLock:
        given = {"namespace": namespace, **options}
        room = make(RedisLock, **given)
        assert isinstance(room, RedisLock)
        return room

    return build


def in_thread(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(redis.RedisError):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def raises(ask: Callable[[], object], words: str) -> bool:
    try:
        ask()
    except redis.RedisError as error:
        return words in str(error)
    return False


@needs_redis
class TestOnAServerOfItsOwn:
    pytestmark = [pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])]

    def test_killed_and_restarted_while_held(
        self, private_server: PrivateServer, rooms: Rooms
    ) -> None:
        """What was answered is on the server's disk: the lock is held as before."""
        server = private_server("redis")
        room = rooms(url=server.url)
        handle = room.obtain("nightly-report")
        assert handle is not None
        server.kill()
        with pytest.raises(LockUnavailable):
            room.renew(handle)
        assert not handle.lost
        server.start()
        assert room.renew(handle)
        assert rooms(url=server.url).obtain("nightly-report") is None
        assert handle.release()

    def test_restarted_without_persistence(
        self, private_server: PrivateServer, rooms: Rooms
    ) -> None:
        """The server has forgotten: a definite loss. The registry's token goes on."""
        server = private_server("redis", settings={"appendonly": "no"})
        room = rooms(url=server.url)
        handle = room.obtain("nightly-report")
        assert handle is not None
        server.kill()
        server.start()
        successor = rooms(url=server.url).obtain("nightly-report")
        assert successor is not None
        assert successor.token > handle.token
        with pytest.raises(LockLost), fence.held(handle.ticket, using="default"):
            pass
        assert not room.renew(handle)
        assert handle.lost

    def test_a_unix_socket(self, private_server: PrivateServer, rooms: Rooms) -> None:
        """In another database of the server, and after the server has been away."""
        server = private_server("redis", settings={"unixsocket": "redis.sock"})
        url = f"unix://{server.directory}/redis.sock?db=1"
        room, rival = rooms(url=url), rooms(url=url)
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert rival.obtain("nightly-report") is None
        assert [held.token for held in rival.holders()] == [handle.token]
        server.kill()
        with pytest.raises(LockUnavailable, match="Redis gave no answer"):
            room.renew(handle)
        server.start()
        assert room.renew(handle)
        assert handle.release()

    @pytest.mark.parametrize("stale", ["yes", "no"], ids=["READONLY", "MASTERDOWN"])
    def test_a_primary_that_becomes_a_replica_and_keeps_its_connections(
        self, private_server: PrivateServer, rooms: Rooms, stale: str
    ) -> None:
        """They are given up: the address leads to the new primary by then."""
        old = private_server("redis", settings={"replica-serve-stale-data": stale})
        new = private_server("redis")
        with Proxy(old.port) as proxy, redis.Redis.from_url(old.url) as client:
            room = rooms(url=proxy.through(old.url))
            handle = room.obtain("nightly-report")
            assert handle is not None
            proxy.target = new.port
            # Nobody is there to be copied from, so that it goes on answering as it is.
            client.replicaof("127.0.0.1", proxy.port if stale == "yes" else 1)
            with pytest.raises(LockUnavailable):
                room.renew(handle)
            assert not room.renew(handle)  # the new one has no copy of it
            assert handle.lost
            successor = room.obtain("nightly-report")
            assert successor is not None
            assert successor.release()
            client.replicaof("no", "one")

    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
    def test_eviction_is_warned_of(
        self, private_server: PrivateServer, rooms: Rooms, policy: str
    ) -> None:
        """A full server drops leases that are held: they are keys that expire, too."""
        server = private_server("redis", settings={"maxmemory-policy": policy})
        result = rooms(url=server.url).probe()
        assert result.usable
        assert policy in result.reason
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "noeviction")
        assert rooms(url=server.url).probe().reason == ""

    def test_looking_at_the_eviction_policy_may_be_forbidden(
        self, private_server: PrivateServer, rooms: Rooms
    ) -> None:
        """The least privileges that the documentation names are enough for all the rest."""
        server = private_server("redis", settings={"maxmemory-policy": "allkeys-lru"})
        with redis.Redis.from_url(server.url) as client:
            rights = "+eval +get +set +del +pexpire +scan"
            client.execute_command(
                "ACL", "SETUSER", "outbox", "on", ">secret", "~outbox-lock:*", *rights.split()
            )
        room = rooms(url=server.url.replace("redis://", "redis://outbox:secret@"))
        assert room.probe().reason == ""
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert room.renew(handle)
        assert [held.resource for held in room.holders()] == ["nightly-report"]
        assert handle.release()

    def test_a_user_who_may_run_no_scripts_is_told_when_it_is_provisioned(
        self, private_server: PrivateServer, rooms: Rooms
    ) -> None:
        """The first lock would be too late to hear of it."""
        server = private_server("redis")
        with redis.Redis.from_url(server.url) as client:
            rights = "+get +set +del +pexpire +scan"
            client.execute_command(
                "ACL", "SETUSER", "outbox", "on", ">secret", "~outbox-lock:*", *rights.split()
            )
        room = rooms(url=server.url.replace("redis://", "redis://outbox:secret@"))
        for look in (room.missing, room.provision):
            with pytest.raises(LockUnavailable, match="eval"):
                look()

    def test_commands_that_a_proxy_does_not_know(
        self, private_server: PrivateServer, rooms: Rooms
    ) -> None:
        """What only people or a warning need is not in the way of the lock."""
        server = private_server("redis")
        room = rooms(url=server.url)
        for unknown in ("CLIENT", "INFO"):
            with redis.Redis.from_url(server.url) as client:
                client.execute_command("ACL", "SETUSER", "default", f"-{unknown.lower()}")
        assert room.probe().usable
        assert room.obtain("nightly-report") is not None

    def test_a_full_memory(self, private_server: PrivateServer, rooms: Rooms) -> None:
        """Nothing is obtained any more; what is held is renewed and released all the same."""
        server = private_server("redis")
        room, rival = rooms(url=server.url), rooms(url=server.url)
        handle = room.obtain("nightly-report")
        assert handle is not None
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory", "1")
        with pytest.raises(LockUnavailable, match=r"Redis refused: .*maxmemory"):
            rival.obtain("weekly-report")
        assert rival.obtain("nightly-report") is None
        assert room.renew(handle)
        assert handle.release()

    def test_a_server_that_is_busy_with_a_script(
        self, private_server: PrivateServer, rooms: Rooms, wait_until: WaitUntil
    ) -> None:
        """Neither lost nor free: it is asked again."""
        server = private_server("redis", settings={"busy-reply-threshold": "10"})
        room = rooms(url=server.url)
        handle = room.obtain("nightly-report")
        assert handle is not None
        with redis.Redis.from_url(server.url) as client:
            busy = in_thread(lambda: client.eval("while true do end", 0))
            with redis.Redis.from_url(server.url) as other:
                wait_until(lambda: raises(other.ping, "BUSY"), what="the script")
                with pytest.raises(LockUnavailable, match="Redis refused: BUSY"):
                    room.renew(handle)
                other.script_kill()
            busy.join(10)
        assert room.renew(handle)
        assert handle.release()

    def test_a_cluster(
        self, private_server: PrivateServer, rooms: Rooms, wait_until: WaitUntil
    ) -> None:
        """Each step touches one key; each resource has a slot of its own."""
        server = private_server("redis", settings={"cluster-enabled": "yes"})
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
            room, rival = (rooms(url=server.url, cluster=True) for _ in range(2))
            slots = {client.cluster("KEYSLOT", room.store_key(name)) for name in ("a", "b", "c")}
        assert len(slots) == 3
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert rival.obtain("nightly-report") is None
        assert room.renew(handle)
        assert [held.token for held in rival.holders()] == [handle.token]
        assert handle.release()
        assert rival.obtain("nightly-report") is not None
        assert rival.probe().usable
        server.kill()
        with pytest.raises(LockUnavailable, match="Redis gave no answer"):
            room.obtain("nightly-report")


@needs_redis
class TestTheKey:
    pytestmark = [pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])]

    @pytest.fixture
    def server(self, running_server: Callable[[str], servers.Server]) -> servers.Server:
        return running_server("redis")

    def test_it_runs_out_by_itself_and_is_renewed_to_one_lease(
        self, rooms: Rooms, server: servers.Server
    ) -> None:
        """Case 075: a renewal sets the time to live anew; it never adds to it."""
        room = rooms(url=server.url, lease=10.0)
        handle = room.obtain("nightly-report")
        assert handle is not None
        with redis.Redis.from_url(server.url) as client:
            client.pexpire(handle.store_key, 5000)
            for _ in range(3):
                assert room.renew(handle)
                assert 9000 < int(client.pttl(handle.store_key)) <= 10_000

    def test_a_key_that_has_lost_its_time_to_live(
        self, rooms: Rooms, server: servers.Server
    ) -> None:
        """PERSIST, or a tool that moves data: nobody would ever get the lease of a dead holder."""
        room, rival = rooms(url=server.url), rooms(url=server.url, lease=1.0)
        key = room.store_key("nightly-report")
        assert room.acquire(key, Owner("f" * 32, "nightly-report"))
        with redis.Redis.from_url(server.url) as client:
            assert client.persist(key)
        assert rival.obtain("nightly-report") is None
        handle = rival.obtain("nightly-report", timeout=5)
        assert handle is not None
        assert handle.release()

    def test_a_late_release_frees_nobody_elses(self, rooms: Rooms, server: servers.Server) -> None:
        """Case 063: the lease has passed, another holds, and the late one is told so."""
        late, rival = rooms(url=server.url), rooms(url=server.url)
        first = late.obtain("nightly-report")
        assert first is not None
        with redis.Redis.from_url(server.url) as client:
            client.delete(first.store_key)
        second = rival.obtain("nightly-report")
        assert second is not None
        assert not first.release()
        assert rooms(url=server.url).obtain("nightly-report", timeout=0.2) is None
        assert rival.prove(second)

    def test_namespaces_do_not_see_each_other(self, rooms: Rooms, server: servers.Server) -> None:
        room, other = rooms(url=server.url), rooms(url=server.url, namespace=uuid.uuid4().hex)
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert list(other.live()) == []
        (live,) = room.live()
        assert live.store_key == handle.store_key
        assert live.pid

    @pytest.mark.parametrize("alias", ["zweite Datenbank", "données"])
    def test_an_alias_that_names_no_connection(
        self, rooms: Rooms, server: servers.Server, alias: str
    ) -> None:
        """Redis takes no spaces, and ASCII only."""
        room = rooms(url=server.url)
        room.alias = alias
        assert room.missing() is None

    def test_a_closed_room_opens_again(self, rooms: Rooms, server: servers.Server) -> None:
        room = rooms(url=server.url)
        room.close()
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert handle.release()

    @pytest.mark.parametrize("more", ["decode_responses=True", "protocol=2", "protocol=3"])
    def test_what_a_url_may_say_besides(
        self, rooms: Rooms, server: servers.Server, more: str
    ) -> None:
        """The URL may be shared with a cache that wants text, or one of the protocols."""
        room = rooms(url=f"{server.url}?{more}")
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert room.renew(handle)
        (live,) = room.live()
        assert (live.store_key, live.pid) == (handle.store_key, os.getpid())
        assert handle.release()

    @pytest.mark.parametrize("junk", [b"junk", b"\xff" * 40, b"0" * 32 + b"[]", b"0" * 32 + b"{}"])
    def test_what_somebody_else_has_written_there(
        self, rooms: Rooms, server: servers.Server, junk: bytes
    ) -> None:
        """It keeps the key, so nobody gets it; and it is shown, without a holder."""
        room = rooms(url=server.url)
        key = room.store_key("nightly-report")
        with redis.Redis.from_url(server.url) as client:
            client.set(key, junk)
            assert room.obtain("nightly-report") is None
            assert [(live.store_key, live.host) for live in room.live()] == [(key, "")]
            client.delete(key)


@pytest.mark.parametrize("more", [{}, {"cluster": True}])
def test_nobody_there(make: Make, more: dict[str, Any]) -> None:
    """A server that refuses to be connected to is an error, at once."""
    room = make(RedisLock, url="redis://127.0.0.1:1/0", namespace="any", **more)
    with pytest.raises(LockUnavailable, match="Redis gave no answer"):
        room.obtain("nightly-report", timeout=SLACK / 10)
