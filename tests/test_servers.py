"""The servers of the suite are real, private, and end when they are told to."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import servers
from tests.servers import tree
from tests.servers.chromium import Chromium
from tests.servers.database import DatabaseServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgresql import PostgreSQL
from tests.stores import STORES

if TYPE_CHECKING:
    from collections.abc import Callable

    StartServer = Callable[..., Any]

ROOT = Path(__file__).resolve().parent.parent


def each(*names: str) -> pytest.MarkDecorator:
    marked = [pytest.param(name, marks=pytest.mark.server(name)) for name in names]
    return pytest.mark.parametrize("name", marked)


each_database = each("postgresql", "mariadb", "mysql")
each_server = each("postgresql", "mariadb", "mysql", "rabbitmq", *STORES)


@pytest.fixture
def database(private_server: StartServer, name: str) -> DatabaseServer:
    """A private database server with one committed row."""
    server = private_server(name)
    assert isinstance(server, DatabaseServer)
    server.execute("CREATE TABLE kept (id integer PRIMARY KEY)")
    server.execute("INSERT INTO kept VALUES (1)")
    return server


@each_database
def test_a_committed_row_survives_kill_and_restart(database: DatabaseServer) -> None:
    url = database.url
    database.kill()
    assert not database.running
    database.start()
    assert database.execute("SELECT id FROM kept") == [(1,)]
    database.restart()
    assert database.execute("SELECT id FROM kept") == [(1,)]
    assert database.url == url


@each_database
def test_two_instances_stand_side_by_side(
    database: DatabaseServer, private_server: StartServer, name: str
) -> None:
    other = private_server(name)
    other.execute("CREATE TABLE kept (id integer PRIMARY KEY)")
    assert other.port != database.port
    assert other.execute("SELECT id FROM kept") == []
    other.kill()
    assert database.execute("SELECT id FROM kept") == [(1,)]


@each_database
def test_a_created_database_is_empty(database: DatabaseServer) -> None:
    url = database.create_database("second")
    assert url == database.url_of("second")
    database.execute("CREATE TABLE kept (id integer PRIMARY KEY)", "second")
    assert database.execute("SELECT id FROM kept", "second") == []


@each_server
def test_pause_stops_all_processes_and_stop_leaves_none(
    name: str, private_server: StartServer
) -> None:
    server = private_server(name)
    family = server.processes()
    server.pause()
    assert {process.state for process in server.processes()} == {"T"}
    server.resume()
    server.ping()
    server.pause()  # a paused server can be stopped in an orderly way too
    server.stop()
    assert not any(process.alive for process in family)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), 1)


@each_database
def test_close_leaves_no_process_and_no_file(name: str) -> None:
    with servers.get(name) as server:
        family, directory = server.processes(), server.directory
        assert server.version[:1].isdigit()
    assert not any(process.alive for process in family)
    assert not directory.exists()


@pytest.mark.server("postgresql")
def test_a_killed_postgresql_leaves_no_shared_memory() -> None:
    before = shared_memory()
    with servers.get("postgresql") as server:
        assert shared_memory() != before
        server.kill()
    assert shared_memory() <= before


@each("postgresql", "rabbitmq")
def test_a_killed_runner_takes_its_server_with_it(
    name: str, wait_until: Callable[..., object]
) -> None:
    code = (
        "from tests import servers\n"
        f"server = servers.get({name!r}).start()\n"
        "print(server.directory, *(process.pid for process in server.processes()), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        directory, *pids = runner.stdout.readline().split()
        family = [process for pid in pids for process in tree.family(int(pid))]
        runner.kill()
    assert len(family) >= len(pids) > 1
    wait_until(lambda: not any(process.alive for process in family))
    shutil.rmtree(directory)


@pytest.mark.server("postgresql")
def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = servers.get("postgresql")
    try:
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join(30)
        server.ping()
    finally:
        server.close()


@pytest.mark.server("postgresql")
def test_settings_reach_the_server(private_server: StartServer) -> None:
    server = private_server("postgresql", settings={"max_connections": "17"})
    assert server.execute("SHOW max_connections") == [("17",)]
    assert server.execute("SHOW fsync") == [("on",)]


@pytest.mark.server("mysql")
def test_mysql_is_oracles(private_server: StartServer) -> None:
    ((comment,),) = private_server("mysql").execute("SELECT @@version")
    assert "MariaDB" not in comment


@pytest.mark.server("pgbouncer")
def test_pgbouncer_is_killed_alone(private_server: StartServer) -> None:
    upstream = private_server("postgresql")
    pooler = private_server("pgbouncer", upstream=upstream, pool_mode="session")
    assert isinstance(pooler, PgBouncer)
    assert pooler.version[:1].isdigit()
    pooler.kill()
    upstream.ping()
    pooler.start().execute("CREATE TABLE kept (id integer)")
    assert upstream.execute("SELECT id FROM kept") == []


@pytest.mark.server("pgbouncer")
def test_pgbouncer_brings_and_ends_its_own_postgresql(private_server: StartServer) -> None:
    pooler = private_server("pgbouncer")
    assert pooler.execute("SELECT 1") == [(1,)]
    upstream = pooler.upstream
    pooler.restart().ping()
    pooler.close()
    assert not upstream.running
    assert upstream.processes() == []


@pytest.mark.server("rabbitmq")
def test_a_confirmed_message_survives_a_crash(private_server: StartServer) -> None:
    import pika

    server = private_server("rabbitmq")
    parameters = pika.URLParameters(server.url)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        persistent = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", "kept", b"body", persistent, mandatory=True)
    server.kill()
    server.start()
    with pika.BlockingConnection(parameters) as connection:
        _, _, body = connection.channel().basic_get("kept", auto_ack=True)
    assert body == b"body"


@pytest.mark.server("chromium")
def test_chromium_is_found() -> None:
    chromium = servers.get("chromium").start()
    assert isinstance(chromium, Chromium)
    assert chromium.path
    assert chromium.version[:1].isdigit()


# Without any server


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="choose from postgresql, mariadb"):
        servers.get("oracle")


NOT_OF_APT = {"mysql", "moto", "secantusdb", "firestore", "dynamodb-local"}


@pytest.mark.parametrize("name", [name for name in servers.NAMES if name not in NOT_OF_APT])
def test_a_missing_server_names_the_line_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.get(name)
    monkeypatch.setattr(type(server), "installed", lambda _: False)
    line = f"apt-get install --yes --no-install-recommends {' '.join(server.apt)}"
    assert server.missing() == f"{server.title} is not installed: run `{line}`."
    with pytest.raises(servers.ServerMissing, match="apt-get install"):
        server.start()


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    class Broken(PostgreSQL):
        def prepare(self) -> None:
            """Nothing, so that the program finds no data."""

        def installed(self) -> bool:
            return True

        def command(self) -> list[str]:
            return ["sh", "-c", "echo no data here; exit 3"]

    with pytest.raises(servers.ServerError, match=r"(?s)status 3.*no data here"):
        Broken().start()


def shared_memory() -> set[str]:
    """The keys of the System V segments of this machine."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    return {line.split()[0] for line in lines[1:]}
