"""A server's wall clock is moved while it runs; what waits for a period does not notice."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import pytest

from tests import servers
from tests.servers import clock
from tests.servers.redis import Redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg
    from _pytest.mark import ParameterSet

    StartServer = Callable[..., Any]

HOUR = 3600.0
MOVABLE = ("postgresql", "mariadb", "mysql", "redis", "dynalite", "moto", "azurite", "secantusdb")


def with_clock(*names: str) -> list[ParameterSet]:
    return [pytest.param(name, marks=pytest.mark.server(name, "libfaketime")) for name in names]


def each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", with_clock(*names))


def ahead(server: servers.Server) -> float:
    """How far a server's clock is ahead of the machine's, in whole minutes."""
    return round((server.wall_clock() - time.time()) / 60) * 60


@pytest.fixture(scope="module", params=with_clock(*MOVABLE))
def server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.get(request.param, clock=True) as server:
        yield server


def test_the_wall_clock_moves_both_ways(server: servers.Server) -> None:
    for seconds in (0.0, HOUR, -HOUR):
        server.shift_clock(seconds)
        assert ahead(server) == seconds
        server.ping()


def test_a_moved_clock_outlives_a_crash(server: servers.Server) -> None:
    server.shift_clock(HOUR)
    before = {process.pid for process in server.processes()}
    server.kill()
    server.start()
    assert ahead(server) == HOUR
    assert not any(list(Path("/dev/shm").glob(f"*faketime_*_{pid}")) for pid in before)


def test_an_idle_server_with_a_moved_clock_stays_idle(server: servers.Server) -> None:
    """A wait until a moment of the wrong clock would return at once, for ever."""
    server.shift_clock(HOUR)
    before = cpu_seconds(server)
    time.sleep(1)  # the period that is measured
    assert cpu_seconds(server) - before < 0.5


def cpu_seconds(server: servers.Server) -> float:
    """What the server's main process used, and its children that have ended."""
    main = server.processes()[0]
    stat = Path(f"/proc/{main.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("ahead_by", [HOUR, -HOUR])
@each("postgresql")
def test_postgresqls_timeouts_are_periods(
    private_server: StartServer, name: str, ahead_by: float
) -> None:
    """All four that a session lock relies on; libfaketime alone would never let them end."""
    import psycopg
    from psycopg import errors

    server = private_server(name, clock=True)
    server.shift_clock(ahead_by)
    with psycopg.connect(server.url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")
        for timeout, statements, expected in (
            ("statement_timeout", ["SELECT pg_sleep(30)"], errors.QueryCanceled),
            ("lock_timeout", ["SELECT pg_advisory_lock(1)"], errors.LockNotAvailable),
            ("idle_session_timeout", [], errors.IdleSessionTimeout),
            (
                "idle_in_transaction_session_timeout",
                ["BEGIN"],
                errors.IdleInTransactionSessionTimeout,
            ),
        ):
            started = time.monotonic()
            with psycopg.connect(server.url, autocommit=True) as session:
                session.execute(f"SET {timeout} = 200")
                with pytest.raises(expected):
                    await_end(session, statements)
            assert 0.2 <= time.monotonic() - started < 5


def await_end(session: psycopg.Connection[Any], statements: list[LiteralString]) -> None:
    """Run the statements, then be silent until the server says something, and read it."""
    for statement in statements:
        session.execute(statement)
    select.select([session], [], [], 10)
    session.execute("SELECT 1")


@each("mariadb", "mysql")
def test_a_user_lock_waits_for_its_period(private_server: StartServer, name: str) -> None:
    import MySQLdb

    server = private_server(name, clock=True)
    holder = MySQLdb.connect(host="127.0.0.1", port=server.port, user="root")
    holder.query("SELECT GET_LOCK('it', 0)")
    try:
        for seconds in (HOUR, -HOUR):
            server.shift_clock(seconds)
            started = time.monotonic()
            assert server.execute("SELECT GET_LOCK('it', 1)") == [(0,)]
            assert 0.9 <= time.monotonic() - started < 5
    finally:
        holder.close()  # type: ignore[no-untyped-call]  # the stubs leave it untyped


@pytest.mark.parametrize("ahead_by", [HOUR, -HOUR])
@each("mariadb", "mysql")
def test_a_silent_session_ends_in_its_period(
    private_server: StartServer, name: str, ahead_by: float
) -> None:
    import MySQLdb

    server = private_server(name, clock=True)
    server.shift_clock(ahead_by)
    session = MySQLdb.connect(host="127.0.0.1", port=server.port, user="root")
    session.query("SET wait_timeout = 1")
    started = time.monotonic()
    poll = select.poll()
    poll.register(session.fileno(), select.POLLIN)  # type: ignore[no-untyped-call]
    assert poll.poll(10_000)
    assert 0.9 <= time.monotonic() - started < 5
    session.close()  # type: ignore[no-untyped-call]


@each("redis")
def test_a_key_expires_by_the_moved_clock(private_server: StartServer, name: str) -> None:
    import redis

    server = private_server(name, clock=True)
    with redis.Redis.from_url(server.url) as client:
        client.set("key", "value", px=60_000)
        server.shift_clock(-HOUR)
        assert client.pttl("key") > 3_600_000
        server.shift_clock(HOUR)
        assert client.get("key") is None


@each("firestore")
def test_firestore_goes_forward_only(
    private_server: StartServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times never go back, as the real one's; moved back, it stands still."""
    monkeypatch.setattr(clock, "_FOLLOW_TIMEOUT", 1.0)
    server = private_server(name, clock=True)
    server.shift_clock(HOUR)
    assert ahead(server) == HOUR
    with pytest.raises(servers.ServerError, match="does not follow"):
        server.shift_clock(0)


# Without any server


def test_only_a_server_with_a_clock_can_be_moved() -> None:
    with pytest.raises(servers.ServerError, match="without clock=True"):
        Redis().shift_clock(1)


def test_a_missing_library_names_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "library", lambda: None)
    monkeypatch.setattr(Redis, "installed", lambda _: True)
    with pytest.raises(servers.ServerMissing, match=r"apt-get install .* libfaketime"):
        Redis(clock=True).start()
