"""Sweepers as processes: killed, stopped, frozen, and bereft of their database."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, InterfaceError, connection, connections, transaction

from django_outbox_lock import fence, keys
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.engines.marking import Marker
from django_outbox_lock.models import Lock, OutboxMessage
from django_outbox_lock.outbox import publish
from tests.sessions import SERVERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import ManageProcess, StartManage, WaitUntil

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

OUTSTANDING, SENT, DEAD = OutboxMessage.State.values
LEASE = 2.0
# Where nobody waits for its end, and nothing may go twice although the machine is busy.
UNHURRIED = 30.0


class Sweepers:
    """Starts runsweeper processes whose publisher records what it is given."""

    def __init__(self, start: StartManage, folder: Path) -> None:
        self._start = start
        self.path = folder / "sent.txt"
        self.lease = LEASE
        self.env: dict[str, str] = {}

    def start(self, *args: str, seconds: float = 0.0, **sweeper: Any) -> ManageProcess:
        options = {"path": str(self.path), "seconds": seconds}
        publisher = {"BACKEND": "tests.engines.recording.Recording", "OPTIONS": options}
        outbox = {
            "LOCK": {"OPTIONS": {"lease": self.lease}},
            "PUBLISHERS": {"default": publisher},
            "SWEEPER": {"interval": 0.2, "linger": 0.0, **sweeper},
        }
        env = {"OUTBOX_LOCK": json.dumps({"default": outbox}), "LOG_LEVEL": "DEBUG", **self.env}
        return self._start("runsweeper", *args, env=env)

    @property
    def lines(self) -> list[tuple[int, int]]:
        """(process id, payload) in the order of sending."""
        if not self.path.exists():
            return []
        pairs = (line.split() for line in self.path.read_text().splitlines())
        return [(int(pid), int(payload)) for pid, payload in pairs]

    @property
    def payloads(self) -> list[int]:
        return [payload for _, payload in self.lines]

    def by(self, process: ManageProcess) -> list[int]:
        """What one process has sent."""
        return [payload for pid, payload in self.lines if pid == process.pid]

    def repeated(self) -> int:
        """How many messages were sent more than once."""
        return sum(number > 1 for number in Counter(self.payloads).values())


@pytest.fixture
def sweepers(start_manage: StartManage, tmp_path: Path) -> Sweepers:
    return Sweepers(start_manage, tmp_path)


def write(*payloads: int, using: str = "default", key: str | None = None) -> None:
    with transaction.atomic(using=using):
        for payload in payloads:
            publish("t", payload, key=key, using=using)


def all_sent(using: str = "default") -> bool:
    rows = OutboxMessage.objects.using(using)
    return not rows.exclude(state=SENT).exists()


def test_another_takes_over_from_a_sweeper_that_was_killed(
    sweepers: Sweepers, wait_until: WaitUntil
) -> None:
    """Cases 059 and 065: SIGKILL in mid-page; at most one page goes out twice."""
    write(*range(60))
    first = sweepers.start("--batch-size", "10", seconds=0.05)
    wait_until(lambda: len(sweepers.payloads) >= 15, timeout=30)
    second = sweepers.start("--batch-size", "10")
    token = Lock.objects.get(resource="OutboxSweeper").token
    first.kill()
    wait_until(lambda: "runs every" in second.output, timeout=30)
    began = time.monotonic()
    wait_until(all_sent, timeout=30)
    assert time.monotonic() - began < LEASE + 10
    assert sorted(set(sweepers.payloads)) == list(range(60))
    assert sweepers.repeated() <= 10
    assert sweepers.by(second)
    assert Lock.objects.get(resource="OutboxSweeper").token > token


def test_the_first_sigterm_finishes_the_message_in_flight(
    sweepers: Sweepers, wait_until: WaitUntil
) -> None:
    write(*range(50))
    sweepers.lease = UNHURRIED
    process = sweepers.start(seconds=0.05)
    wait_until(lambda: len(sweepers.payloads) >= 5, timeout=30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    sent = sweepers.payloads
    assert len(sent) < 50
    states = list(OutboxMessage.objects.order_by("id").values_list("state", flat=True))
    assert states == [SENT] * len(sent) + [OUTSTANDING] * (50 - len(sent))
    assert Lock.objects.get(resource="OutboxSweeper").owner is None
    again = sweepers.start("--once")
    assert again.wait(30) == 0
    assert sweepers.payloads == list(range(50))


def test_an_idle_sweeper_stops_at_once(sweepers: Sweepers, wait_until: WaitUntil) -> None:
    process = sweepers.start("--interval", "60")
    wait_until(lambda: "runs every 60 s" in process.output, timeout=30)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert time.monotonic() - started < 5


def test_a_second_signal_ends_the_process_at_once(
    sweepers: Sweepers, wait_until: WaitUntil
) -> None:
    write(*range(3))
    process = sweepers.start(seconds=60)
    wait_until(lambda: sweepers.payloads, timeout=30)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(Exception, match="timed out"):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 1
    assert set(OutboxMessage.objects.values_list("state", flat=True)) == {OUTSTANDING}


def test_a_sweeper_that_was_frozen_past_its_lease_changes_nothing(
    sweepers: Sweepers, wait_until: WaitUntil
) -> None:
    """Case 065: SIGSTOP in mid-page, takeover, SIGCONT."""
    write(*range(20))
    first = sweepers.start("--batch-size", "20", seconds=0.1)
    wait_until(lambda: len(sweepers.payloads) >= 3, timeout=30)
    first.send_signal(signal.SIGSTOP)
    frozen = time.monotonic()
    second = sweepers.start("--batch-size", "20")
    wait_until(all_sent, timeout=30)
    assert time.monotonic() - frozen >= LEASE / 3
    rows = list(OutboxMessage.objects.order_by("id").values())
    seen_before = len(sweepers.by(first))
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: "is lost" in first.output, timeout=20)
    wait_until(lambda: "LockLost" in first.output, timeout=20)
    assert first.output.count("token 1 is lost") == 1
    assert len(sweepers.by(first)) - seen_before <= 2  # the one in flight, and one before it knew
    assert list(OutboxMessage.objects.order_by("id").values()) == rows
    assert sorted(set(sweepers.payloads)) == list(range(20))
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


@pytest.mark.parametrize("name", SERVERS)
def test_a_restart_of_the_database_is_survived(
    name: str,
    sweepers: Sweepers,
    private_server: Callable[..., Any],
    run_manage: Any,
    wait_until: WaitUntil,
) -> None:
    """Case 085: in mid-page and between two cycles."""
    server = private_server(name)
    sweepers.env = {"DATABASE_URL": server.url}
    run_manage("migrate", "-v0", env=sweepers.env)
    script = (
        "from django.db import transaction\n"
        "from django_outbox_lock import publish\n"
        "with transaction.atomic():\n"
        "    for n in range({0}, {1}): publish('t', n)\n"
    )
    run_manage("shell", "-v0", "-c", script.format(0, 30), env=sweepers.env)
    process = sweepers.start("--batch-size", "10", seconds=0.1)
    wait_until(lambda: len(sweepers.payloads) >= 14, timeout=40)
    server.restart()
    wait_until(lambda: set(sweepers.payloads) == set(range(30)), timeout=40)

    def left() -> int:
        sql = "SELECT COUNT(*) FROM django_outbox_lock_outboxmessage WHERE state <> 20"
        return int(server.execute(sql)[0][0])

    wait_until(lambda: left() == 0, timeout=30)
    assert sweepers.repeated() <= 10
    server.restart()  # now nothing is due: between two cycles
    run_manage("shell", "-v0", "-c", script.format(30, 40), env=sweepers.env)
    wait_until(lambda: left() == 0 and len(set(sweepers.payloads)) == 40, timeout=40)
    assert sweepers.payloads[-10:] == list(range(30, 40))
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0


TABLES = (
    "django_outbox_lock_outboxmessage",
    "django_outbox_lock_lock",
    "django_outbox_lock_hold",
    "django_outbox_lock_topicstate",
    "django_migrations",
)


@pytest.mark.parametrize("name", SERVERS)
def test_a_database_that_stops_writing_costs_one_page(
    name: str, sweepers: Sweepers, server: Any, wait_until: WaitUntil
) -> None:
    """The privilege to UPDATE the messages is revoked in mid-drain, and comes back."""
    database = str(connection.settings_dict["NAME"])
    grants = Grants(name, database)
    for statement in grants.prepare:
        server.execute(statement, database)
    sweepers.env = {"DATABASE_URL": grants.url(server)}
    sweepers.lease = UNHURRIED
    write(*range(40))
    process = sweepers.start("--batch-size", "8", seconds=0.05)
    wait_until(lambda: len(sweepers.payloads) >= 10, timeout=40)
    server.execute(grants.revoke, database)
    wait_until(lambda: "denied" in process.output, timeout=40)
    at_refusal = len(sweepers.payloads)
    wait_until(lambda: process.output.count("denied") >= 1 and _cycles(process) >= 2, timeout=40)
    assert len(sweepers.payloads) == at_refusal
    server.execute(grants.grant, database)
    wait_until(all_sent, timeout=60)
    assert sorted(sweepers.payloads) == list(range(40))  # not even one went twice
    wait_until(lambda: "works again" in process.output, timeout=20)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0


def _cycles(process: ManageProcess) -> int:
    return process.output.count("django_outbox_lock.engines OutboxSweeper on 'default': ")


class Grants:
    def __init__(self, name: str, database: str) -> None:
        self.database = database
        messages = TABLES[0]
        if name == "postgresql":
            who = "limited"
            self.prepare = [
                "DROP OWNED BY limited" if _role_exists() else "CREATE ROLE limited LOGIN",
                *(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {t} TO {who}" for t in TABLES),
                f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {who}",
            ]
            place = messages
        else:
            who = "'limited'@'%'"
            self.prepare = [
                f"CREATE USER IF NOT EXISTS {who}",
                *(
                    f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.{t} TO {who}"
                    for t in TABLES
                ),
            ]
            place = f"{database}.{messages}"
        self.revoke = f"REVOKE UPDATE ON {place} FROM {who}"
        self.grant = f"GRANT UPDATE ON {place} TO {who}"

    def url(self, server: Any) -> str:
        return f"{server.scheme}://limited@127.0.0.1:{server.port}/{self.database}"


def _role_exists() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = 'limited'")
        return cursor.fetchone() is not None


@pytest.mark.parametrize("name", SERVERS)
def test_one_frozen_between_fence_and_commit_blocks_nobody_for_longer_than_its_lease(
    name: str,
) -> None:
    """E14: the server ends its session; a successor is let in, the outcomes are refused."""
    lease = 1.0
    backend = MemoryLock("default", lease=60)
    backend.lease = lease  # what bounds the transaction, not what ends the handle
    handle = backend.obtain("OutboxSweeper")
    assert handle is not None
    times: list[float] = []

    def succeed() -> None:
        Lock.objects.filter(pk=keys.resource_id("OutboxSweeper")).update(owner="another")
        times.append(time.monotonic())
        connections.close_all()

    successor = threading.Thread(target=succeed)

    def freeze() -> None:
        with Marker("default").fenced(handle):
            times.append(time.monotonic())
            successor.start()
            successor.join(20)

    with pytest.raises((DatabaseError, InterfaceError)):
        freeze()
    frozen, let_in = times
    assert lease * 0.5 < let_in - frozen < lease + 5
    connection.close()
    assert fence.current_token(connection, "OutboxSweeper") == handle.token
    assert Lock.objects.get(resource="OutboxSweeper").owner == "another"
    backend.close()
