"""What other people's servers, settings and handlers do to the outbox in the field."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections, transaction

from django_outbox_lock import Rejected, Retry, TransportDown, dberrors, run_once
from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.checked import LONGEST
from django_outbox_lock.engines import routing
from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.exceptions import InvalidSettings
from django_outbox_lock.locking import locks
from django_outbox_lock.models import Hold, OutboxMessage, ProcessingLog, TopicState
from django_outbox_lock.outcomes import Outcome, Sent
from django_outbox_lock.querysets.dialect import update_each
from django_outbox_lock.querysets.messages import Change
from tests.locks.conftest import add_alias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_outbox_lock.engines.base import Engine
    from django_outbox_lock.envelope import Envelope
    from tests.engines.conftest import Outbox

__all__ = ["add_alias"]

pytestmark = pytest.mark.django_db(transaction=True)

WORDS = "špatně: 😀 Ж"
ESCAPED = WORDS.encode("ascii", "backslashreplace").decode()
TABLES = (OutboxMessage, Hold, TopicState, ProcessingLog)


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.server(name)) for name in ("mariadb", "mysql")]
)
def mysql() -> None:
    """The test belongs to MariaDB and to MySQL."""


@contextlib.contextmanager
def session_options(**options: str) -> Iterator[None]:
    """Sessions of the default alias are opened with these options of the driver, too."""
    before = connection.settings_dict["OPTIONS"]
    connection.close()
    locks.close()
    connection.settings_dict["OPTIONS"] = {**before, **options}
    try:
        yield
    finally:
        connection.close()
        locks.close()
        connection.settings_dict["OPTIONS"] = before


@contextlib.contextmanager
def character_set(name: str) -> Iterator[None]:
    """Our tables are as in a database that was made with another character set."""

    def convert(name: str) -> None:
        with connection.cursor() as cursor:
            for model in TABLES:
                table = connection.ops.quote_name(model._meta.db_table)
                cursor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET {name}")

    convert(name)
    try:
        yield
    finally:
        for model in TABLES:
            model.objects.all().delete()
        convert("utf8mb4")


def fail_in_every_way(outbox: Outbox) -> None:
    """A key whose head fails, a rejected message, a broken transport, and one that is sent."""
    outcomes = {"first": Retry(WORDS), "bad": Rejected(WORDS)}
    outbox.behave = lambda envelope: outcomes.get(envelope.json())
    outbox.write("first", "second", key="k")
    outbox.write("bad", "good")
    outbox.sweeper().tick()
    outbox.behave = lambda envelope: breaking(envelope) if envelope.topic == "cut" else None
    outbox.write("cut", topic="cut")
    outbox.sweeper().tick()


def breaking(envelope: Envelope) -> Any:
    raise TransportDown(WORDS)


def told(outbox: Outbox) -> list[str]:
    """What the rows say of each failure."""
    return [
        outbox.row("first").last_error,
        outbox.row("bad").last_error,
        outbox.hold().reason,
        outbox.topic("cut").last_error,
    ]


@pytest.mark.usefixtures("mysql")
@pytest.mark.parametrize("name", ["utf8mb3", "latin1"])
def test_a_table_that_cannot_hold_an_errors_text_holds_nobody_up(
    outbox: Outbox,
    name: str,
) -> None:
    """Else the message would be sent again and again, its attempts uncounted."""
    with character_set(name):
        fail_in_every_way(outbox)
        assert told(outbox) == [ESCAPED] * 4
        assert outbox.states() == {"first": 10, "second": 10, "bad": 30, "good": 20, "cut": 10}
        assert outbox.row("first").attempts == 1
        with pytest.raises(ValueError, match="špatně"):
            run_once("billing", "m-1", failing)
        assert ProcessingLog.objects.get().last_error == f"ValueError: {ESCAPED}"


@pytest.mark.server("postgresql")
def test_a_database_that_cannot_hold_an_errors_text_holds_nobody_up(
    running_server: Callable[[str], Any], add_alias: Callable[..., str]
) -> None:
    """PostgreSQL ends a transaction with the statement that it refuses: it must go on here."""
    server = running_server("postgresql")
    kind = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    server.execute(f"CREATE DATABASE latin {kind}")
    place = {"HOST": "127.0.0.1", "PORT": server.port, "USER": server.superuser}
    alias = add_alias("latin", NAME="latin", **place)
    with connections[alias].schema_editor() as editor:
        editor.create_model(OutboxMessage)
    rows = OutboxMessage.objects.using(alias)
    row = rows.create(topic="t", body=b"", slot=0, due_at=0, headers="{}")
    with transaction.atomic(using=alias):
        assert rows.apply([Change(row.pk, 0, 10, 1, due_in=0, error=WORDS)]) == 1
        assert rows.count() == 1
    row.refresh_from_db()
    assert (row.attempts, row.last_error) == (1, ESCAPED)
    connections[alias].close()
    server.execute("DROP DATABASE latin")


def failing() -> None:
    raise ValueError(WORDS)


@pytest.mark.usefixtures("mysql")
def test_the_words_of_an_error_do_not_depend_on_the_connections_character_set(
    outbox: Outbox,
) -> None:
    with session_options(charset="utf8mb3"):
        fail_in_every_way(outbox)
    assert told(outbox) == [WORDS] * 4


@pytest.mark.usefixtures("mysql")
def test_safe_updates_are_no_obstacle_and_come_back(outbox: Outbox) -> None:
    with session_options(init_command="SET sql_safe_updates = 1"):
        fail_in_every_way(outbox)
        assert outbox.states() == {"first": 10, "second": 10, "bad": 30, "good": 20, "cut": 10}
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.sql_safe_updates")
            assert cursor.fetchone() == (1,)


@pytest.mark.usefixtures("mysql")
def test_ansi_quotes_and_backslashes_are_no_obstacle(outbox: Outbox) -> None:
    mode = "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,STRICT_TRANS_TABLES'"
    with session_options(init_command=mode):
        fail_in_every_way(outbox)
    assert told(outbox) == [WORDS] * 4


def test_the_errors_of_the_largest_page_fit_into_a_statement() -> None:
    """MariaDB takes 16 MiB: JSON escapes a character in six bytes, SQL its backslash in one."""
    changes = [Change(number, 0, 10, 1, due_in=1, error="Ж" * 2000) for number in range(10_000)]
    sizes: list[int] = []

    def measure(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        sizes.extend(len(text) + text.count("\\") for text in params or () if isinstance(text, str))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(measure):
        assert OutboxMessage.objects.all().apply(changes) == 0
    assert max(sizes) < 16 * 1024 * 1024


def test_other_errors_of_the_database_are_not_taken_for_characters() -> None:
    with pytest.raises(Exception, match="nowhere") as refused:
        update_each(
            connection,
            OutboxMessage._meta.db_table,
            columns={"id": "number", "error": "text"},
            assign={"nowhere": "v.error"},
            where="1 = 1",
            rows=[{"id": 1, "error": WORDS}],
        )
    assert not dberrors.is_unstorable_text(refused.value)


# Publishers


class Raising(BasePublisher):
    """Raises what it should have returned, or something whose text cannot be had."""

    errors: dict[Any, Exception]

    def __init__(self, *, errors: dict[Any, Exception]) -> None:
        self._errors = errors

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        for envelope in envelopes:
            if error := self._errors.get(envelope.json()):
                raise error
            yield Sent()


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError


def test_a_publisher_may_raise_an_outcome(outbox: Outbox) -> None:
    errors = {1: Rejected("never"), 2: Retry("later", after=1000)}
    outbox.configure(f"{__name__}.Raising", options={"errors": errors})
    outbox.write(1, 2, 3)
    outbox.sweeper().tick()
    assert outbox.states() == {1: 30, 2: 10, 3: 20}
    assert (outbox.row(1).last_error, outbox.row(2).last_error) == ("never", "later")


def test_a_publisher_may_raise_them_out_of_a_task_group(outbox: Outbox) -> None:
    alone = ExceptionGroup("unhandled errors in a TaskGroup", [Rejected("never")])
    down = ExceptionGroup("unhandled errors in a TaskGroup", [TransportDown("no route")])
    outbox.configure(f"{__name__}.Raising", options={"errors": {1: alone, 2: down}})
    outbox.write(1, 2)
    outbox.sweeper().tick()
    assert outbox.states() == {1: 30, 2: 10}
    assert outbox.row(2).attempts == 0


def test_an_error_whose_text_cannot_be_had_stops_nobody(outbox: Outbox) -> None:
    outbox.configure(f"{__name__}.Raising", options={"errors": {1: Mute(), 2: Retry(Mute())}})  # type: ignore[arg-type]
    outbox.write(1, 2, 3)
    outbox.sweeper().tick()
    assert outbox.states() == {1: 10, 2: 10, 3: 20}
    assert outbox.row(1).last_error == "Mute: (its text cannot be had: LookupError)"
    assert outbox.row(2).last_error == "(its text cannot be had: LookupError)"


def test_a_single_cycle_leaves_no_thread_behind(outbox: Outbox) -> None:
    """A task that makes a sweeper each minute would have a thread and a connection for each."""
    for number in range(3):
        outbox.write(number)
        outbox.sweeper().tick()
    assert outbox.sent == [0, 1, 2]
    assert not [t for t in threading.enumerate() if t.name == "outbox-publisher"]


def test_any_number_of_topics_takes_little_memory(
    outbox: Outbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "REMEMBERED", 3)
    for number in range(10):
        outbox.write(number, topic=f"order.{number}.changed")
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.sent == list(range(10))
    assert len(sweeper._routing._known) <= 3
    assert len(sweeper._policies._known) <= 3


# Settings

SECONDS = [
    *((Sweeper, name) for name in ("interval", "linger", "stall_after", "page_seconds")),
    *((Sweeper, name) for name in ("unroutable_after", "backoff_cap", "breaker_cap")),
    *((Archiver, name) for name in ("minimum_age", "log_minimum_age", "interval", "pause")),
]


@pytest.mark.parametrize("seconds", [math.inf, 1e13])
@pytest.mark.parametrize(("engine", "name"), SECONDS)
def test_for_ever_is_told_when_the_settings_are_read(
    outbox: Outbox, engine: type[Engine], name: str, seconds: float
) -> None:
    """No thread can wait so long, and no clock's number is so large: it would fail at work."""
    with pytest.raises(InvalidSettings, match=f"{name} must be at most 3155760000"):
        engine.from_settings("default", **{name: seconds})


def test_a_publisher_may_have_all_the_time_that_can_be_counted(outbox: Outbox) -> None:
    outbox.write(1)
    outbox.sweeper(send_timeout=LONGEST - 1, stall_after=LONGEST, page_seconds=LONGEST).tick()
    assert outbox.sent == [1]
