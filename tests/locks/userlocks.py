"""What the tests of the user locks of MariaDB and MySQL stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import MySQLdb
import pytest
from django.db import connections

from django_outbox_lock import signals
from django_outbox_lock.backends.locks.mysql import MySQLLock
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import ManageProcess, StartManage, WaitUntil
    from tests.servers.mysqld import MysqldServer

LEASE = 3.0
# What a busy machine may take on top of a bound, in seconds.
SLACK = 3.0
# A lease whose end, and whose first heartbeat, are long after a test.
UNHURRIED = 60.0

HOLDER = """
import time
from django_outbox_lock import fence, signals
from django_outbox_lock.backends.locks.mysql import MySQLLock
from django.db import transaction
signals.lock_lost.connect(lambda **kw: print("lost", kw["token"], flush=True), weak=False)
backend = MySQLLock("default", lease={lease})
handle = backend.obtain({resource!r})
print("held", handle.token, handle.session_id, flush=True)
handle.wait_lost()
try:
    with fence.held(handle.ticket, using="default"):
        print("still the holder", flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
time.sleep(60)
"""


class UserLocks:
    """The fixtures; a test class for each of the two servers inherits them with the tests."""

    @pytest.fixture
    def backend(self, make: Callable[..., MySQLLock]) -> MySQLLock:
        return make()

    @pytest.fixture
    def make(self) -> Iterator[Callable[..., MySQLLock]]:
        """Makes backends, each a process of its own as far as the server can see."""
        made: list[MySQLLock] = []

        def build(
            alias: str = "default", cls: type[MySQLLock] = MySQLLock, **options: Any
        ) -> MySQLLock:
            made.append(cls(alias, **{"lease": LEASE, **options}))
            return made[-1]

        yield build
        for backend in made:
            backend.close()

    @pytest.fixture
    def losses(self) -> Iterator[list[int]]:
        """Tokens whose loss was signalled."""
        told: list[int] = []

        def note(token: int, **kwargs: Any) -> None:
            told.append(token)

        signals.lock_lost.connect(note)
        yield told
        signals.lock_lost.disconnect(note)

    @pytest.fixture
    def start_holder(
        self, start_manage: StartManage, wait_until: WaitUntil
    ) -> Callable[[str, float], ManageProcess]:
        """Starts a process that holds the resource until it notices a loss."""

        def start(resource: str, lease: float) -> ManageProcess:
            code = HOLDER.format(resource=resource, lease=lease)
            process = start_manage("shell", "-v0", "-c", code)
            wait_until(lambda: "held" in process.output, 20, "the holder's lock")
            return process

        return start

    @pytest.fixture
    def limited(self, server: MysqldServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """The application's user may do nothing beyond its own database."""
        settings = connections["default"].settings_dict
        server.execute("CREATE USER IF NOT EXISTS limited@'127.0.0.1' IDENTIFIED BY 'secret'")
        server.execute(f"GRANT ALL ON `{settings['NAME']}`.* TO limited@'127.0.0.1'")
        connections["default"].close()
        with monkeypatch.context() as patch:
            patch.setitem(settings, "USER", "limited")
            patch.setitem(settings, "PASSWORD", "secret")
            yield
        connections["default"].close()

    @pytest.fixture
    def lead_to(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[MysqldServer], None]]:
        """Leads the alias "default" to another server for the rest of the test."""
        settings = connections["default"].settings_dict
        with monkeypatch.context() as patch:

            def lead(server: MysqldServer) -> None:
                connections["default"].close()
                patch.setitem(settings, "PORT", server.port)
                patch.setitem(settings, "NAME", "outbox")

            yield lead
            connections["default"].close()

    @pytest.fixture
    def own_server(
        self,
        server: MysqldServer,
        private_server: Callable[..., MysqldServer],
        lead_to: Callable[[MysqldServer], None],
    ) -> MysqldServer:
        """One of the same kind, with the registry alone, which the test may pause and restart."""
        own = private_server(server.name)
        lead_to(own)
        with connections["default"].schema_editor() as editor:
            editor.create_model(Lock)
        return own


def connect(server: MysqldServer) -> Any:
    return MySQLdb.connect(
        host="127.0.0.1", port=server.port, user="root", database="outbox", autocommit=True
    )


def ask(connection: Any, sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows = cursor.fetchall()
    return rows[0][0] if rows else None


def end_session(server: MysqldServer, backend: MySQLLock) -> None:
    server.execute(f"KILL {backend._session.session_id}")


def waits(server: MysqldServer, session: int) -> bool:
    sql = f"SELECT state FROM information_schema.processlist WHERE id = {session}"
    return "user" in str(server.execute(sql)[0][0]).lower()


def sessions(server: MysqldServer) -> int:
    sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'root'"
    return int(server.execute(sql)[0][0])


def answering(value: Any) -> Any:
    return Answer(value)


class Answer:
    """A cursor whose every answer is one value: stands in for an answer that cannot be provoked."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def execute(self, sql: str, params: Any = None) -> None:
        pass

    def fetchone(self) -> tuple[Any]:
        return (self.value,)
