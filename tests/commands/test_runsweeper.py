"""``manage.py runsweeper``: what a person sees, and what call_command does to its caller."""

from __future__ import annotations

import io
import json
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder

from django_outbox_lock.backends.publishers.memory import MemoryPublisher
from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.exceptions import InvalidSettings
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.outbox import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.commands.conftest import RunUnread
    from tests.conftest import RunManage

MEMORY = "django_outbox_lock.backends.publishers.memory.MemoryPublisher"
PUBLISHERS = {"default": {"BACKEND": MEMORY}}
IN_MEMORY_LOCK = {"BACKEND": "django_outbox_lock.backends.locks.memory.MemoryLock"}


@pytest.fixture
def outbox(settings: Any, transactional_db: None) -> Iterator[Callable[..., None]]:
    def configure(**sections: Any) -> None:
        settings.OUTBOX_LOCK = {"default": {"PUBLISHERS": PUBLISHERS, **sections}}

    configure()
    MemoryPublisher.reset()
    yield configure
    MemoryPublisher.reset()


def write(*payloads: int) -> None:
    with transaction.atomic():
        for payload in payloads:
            publish("t", payload)


def sweep(*args: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("runsweeper", "--once", *args, stdout=out, stderr=out, **options)
    return out.getvalue()


def sent() -> list[Any]:
    return [envelope.json() for envelope in MemoryPublisher.outbox]


def test_once_drains_and_says_what_it_did(outbox: Any) -> None:
    """Case 079: the streams that were passed are used."""
    write(1, 2, 3)
    assert sweep("--batch-size", "2") == "sent 3, retried 0, dead 0, parked 0\n"
    assert sent() == [1, 2, 3]


def test_the_callers_transaction_stays_the_callers(outbox: Any) -> None:
    """Case 079."""
    outbox(LOCK=IN_MEMORY_LOCK)
    with transaction.atomic():
        write(1)
        sweep()
        assert connection.in_atomic_block
        transaction.set_rollback(True)
    assert sent() == [1]
    assert not OutboxMessage.objects.exists()


def test_a_loop_inside_a_transaction_is_refused(outbox: Any) -> None:
    with transaction.atomic(), pytest.raises(CommandError, match="only a single cycle"):
        call_command("runsweeper")


def test_a_session_that_died_meanwhile_is_replaced(outbox: Any) -> None:
    """Case 079: called from a long-lived process whose database was restarted."""
    sweep()
    write(1)
    end_session()
    sweep()
    assert sent() == [1]


def end_session() -> None:
    """The server ends our session; a file has none that could die."""
    kill = {
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
        "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
    }.get(connection.vendor)
    if kill is None:
        return
    with connection.cursor() as cursor:
        cursor.execute(kill[0])
        session = cursor.fetchone()[0]
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute(kill[1].format(session))
    other.close()


def test_the_handlers_of_signals_are_restored(outbox: Any) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    sweep()
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


def test_it_runs_on_another_thread(outbox: Any) -> None:
    write(1)
    errors: list[BaseException] = []

    def run() -> None:
        from django.db import connections

        try:
            sweep()
        except BaseException as error:  # noqa: BLE001 (shown by the assertion)
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not errors
    assert sent() == [1]


def test_a_terminal_sees_one_line_that_is_rewritten(outbox: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    write(1, 2, 3)
    out = Terminal()
    call_command("runsweeper", "--once", "--batch-size=2", stdout=out)
    lines = [f"\rsent {sent}, retried 0, dead 0, parked 0" for sent in (0, 2, 3)]
    assert out.getvalue() == "".join(lines) + "\n"


def test_a_collector_gets_one_line_for_each_cycle_with_work(
    outbox: Any, package_log: pytest.LogCaptureFixture
) -> None:
    write(*range(5))
    sweep("--batch-size=2")
    sweep()
    lines = [r.getMessage() for r in package_log.records if r.name.endswith("engines")]
    assert len(lines) == 1
    assert lines[0].startswith("OutboxSweeper on 'default': sent 5, retried 0, dead 0, parked 0 in")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 10_001),
        ("batch_size", "many"),
        ("batch_bytes", 0),
        ("page_seconds", 0),
        ("interval", -1),
        ("linger", -1),
        ("linger", 300),
        ("send_timeout", "long"),
        ("stall_after", 30),
        ("max_attempts", 0),
        ("max_hanging", 0),
        ("shards", 2),
        ("unroutable_after", -1),
        ("backoff_base", 0),
        ("backoff_cap", 0.5),
        ("backoff_jitter", 2),
        ("breaker_threshold", 0),
        ("breaker_cooldown", 0),
        ("breaker_cap", 1),
    ],
)
def test_a_wrong_option_is_named(outbox: Any, option: str, value: object) -> None:
    outbox(SWEEPER={option: value})
    with pytest.raises(InvalidSettings, match=rf"\['SWEEPER'\].*{option}"):
        Sweeper.from_settings("default")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"SWEEPER": {"bach_size": 3}}, r"\['SWEEPER'\]\['bach_size'\].*'batch_size'"),
        ({"TOPICS": {"a": {"dead_head": "drop"}}}, r"\['TOPICS'\]\['a'\].*dead_head"),
        ({"PUBLISHERS": {}}, r"\['PUBLISHERS'\] is empty"),
        ({"PUBLISHERS": {"x": {"BACKEND": MEMORY}}}, r"\['ROUTES'\] is missing"),
        ({"PUBLISHERS": {"default": {"BACKEND": "no.such"}}}, r"\['default'\]\['BACKEND'\]"),
        ({"PUBLISHERS": {"default": {"BACKEND": MEMORY, "OPTIONS": {"x": 1}}}}, r"\['x'\]"),
    ],
)
def test_wrong_settings_are_one_sentence(outbox: Any, sections: Any, words: str) -> None:
    outbox(**sections)
    with pytest.raises(CommandError, match=words):
        sweep()


def test_under_debug_messages_are_printed_if_nothing_else_is_set(
    outbox: Any, settings: Any, package_log: pytest.LogCaptureFixture, capsys: Any
) -> None:
    outbox(PUBLISHERS={})
    settings.DEBUG = True
    write(7)
    sweep()
    assert "Topic: t" in capsys.readouterr().out
    assert "under DEBUG the messages are printed" in package_log.text


def test_a_missing_migration_is_named(outbox: Any) -> None:
    rows = MigrationRecorder(connection).migration_qs.filter(app="django_outbox_lock")
    kept = list(rows)
    rows.delete()
    try:
        with pytest.raises(CommandError, match="migrate django_outbox_lock --database default"):
            sweep()
    finally:
        for row in kept:
            row.save(force_insert=True)


def test_an_alias_without_an_outbox_is_named(outbox: Any) -> None:
    with pytest.raises(CommandError, match="'nowhere'"):
        sweep(database="nowhere")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgres://postgres@127.0.0.1:1/x", "The database 'default' cannot be reached"),
        ("mysql://root@127.0.0.1:1/x", "The database 'default' cannot be reached"),
    ],
)
def test_an_unreachable_database_is_one_sentence(
    run_manage: RunManage, url: str, words: str
) -> None:
    done = run_manage("runsweeper", env={"DATABASE_URL": url}, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_locked_sqlite_file_is_one_sentence(run_manage: RunManage, tmp_path: Any) -> None:
    import sqlite3

    file = tmp_path / "locked.sqlite3"
    outbox = {"default": {"PUBLISHERS": PUBLISHERS}}
    env = {
        "DATABASE_URL": f"sqlite:///{file}?timeout=1",
        "OUTBOX_LOCK": json.dumps(outbox),
    }
    run_manage("migrate", "-v0", env=env)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        done = run_manage("runsweeper", "--once", env=env, check=False)
    finally:
        other.rollback()
        other.close()
    assert done.returncode == 1
    assert "is locked by somebody else" in done.stderr
    assert "Traceback" not in done.stderr


def test_reads_go_where_the_writes_go(outbox: Any, settings: Any) -> None:
    """Case 089: a router sends reads to a replica that lags behind."""
    settings.DATABASE_ROUTERS = ["tests.commands.test_runsweeper.Replica"]
    with transaction.atomic():
        publish("t", 1, using="default")
    sweep()
    assert sent() == [1]
    assert OutboxMessage.objects.using("default").get().state == OutboxMessage.State.DISPATCHED


class Replica:
    """Reads elsewhere, where there is not even a table."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "nowhere"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


class Gone(io.StringIO):
    """A terminal whose window was closed, or a pipe that nobody reads any more."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("terminal", [True, False])
def test_an_output_that_is_gone_does_not_end_the_work(outbox: Any, *, terminal: bool) -> None:
    write(1, 2)
    call_command("runsweeper", "--once", "--batch-size", "1", stdout=Gone(terminal=terminal))
    assert sent() == [1, 2]


def test_a_reader_that_is_gone_is_no_error(outbox: Any, run_unread: RunUnread) -> None:
    settings = json.dumps({"default": {"PUBLISHERS": PUBLISHERS}})
    done = run_unread("runsweeper", "--once", OUTBOX_LOCK=settings)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
