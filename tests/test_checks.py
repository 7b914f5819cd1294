"""System checks: each is triggered, and is silent where there is nothing to say."""
# mypy: allow-untyped-calls

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import pytest
from django.core.checks import CheckMessage, Tags, registry, run_checks
from django.db import DataError, OperationalError, connection, connections
from django.test import override_settings

from django_outbox_lock import checks, locking
from django_outbox_lock.backends.locks.base import ProbeResult
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.checks import configuration, databases
from django_outbox_lock.exceptions import InvalidSettings, LockUnavailable
from django_outbox_lock.models import ArchivedMessage, Lock, OutboxMessage, TopicState
from django_outbox_lock.testing import override_outbox
from tests.conftest import ROOT, URL_VARIABLES
from tests.engines.test_field_faults import session_options
from tests.factories import OutboxMessageFactory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from django.db.models import Model
    from pytest_django import Settings

    from tests import servers
    from tests.conftest import RunManage

PUBLISHER = "django_outbox_lock.backends.publishers.base.BasePublisher"
LEASE = locking.LEASE_TABLE
IN_MEMORY = locking.IN_MEMORY
PUBLISHERS = "django_outbox_lock.backends.publishers"
CALLABLE = f"{PUBLISHERS}.callables.CallablePublisher"
RABBIT = f"{PUBLISHERS}.rabbitmq.RabbitMQPublisher"
SESSION_LOCKS = ("postgresql", "mariadb", "mysql", "mssql")


def said(messages: list[CheckMessage]) -> list[str]:
    return [str(message.id).removeprefix("django_outbox_lock.") for message in messages]


def check_outbox(**sections: Any) -> list[CheckMessage]:
    with override_settings(OUTBOX_LOCK={"default": sections}):
        return configuration.check_settings()


WHOLE: dict[str, Any] = {
    "LOCK": {"BACKEND": LEASE, "OPTIONS": {"lease": 5}},
    "PUBLISHERS": {
        "default": {"BACKEND": CALLABLE, "OPTIONS": {"handlers": {"*": "builtins.print"}}},
        "rabbit": {"BACKEND": RABBIT, "OPTIONS": {"url": "amqp://127.0.0.1:1/"}},
    },
    "ROUTES": {"order.*": "rabbit", "*": "default"},
    "TOPICS": {"order.*": {"dead_head": "skip"}},
    "ARCHIVE": {"BACKEND": "django_outbox_lock.backends.archives.table.TableArchive"},
    "SWEEPER": {"batch_size": 10},
    "ARCHIVER": {"minimum_age": 3},
    "PUBLISH": {"max_bytes": 100},
}


# The settings


@pytest.mark.parametrize("sections", [{}, WHOLE])
def test_right_settings_are_passed_over_in_silence(sections: dict[str, Any]) -> None:
    assert check_outbox(**sections) == []


@pytest.mark.parametrize(
    ("number", "sections", "words"),
    [
        ("E001", {"LOKC": {}}, "['LOKC'] is not known. Did you mean 'LOCK'?"),
        ("E001", {"ROUTES": {"*": "a"}}, "['ROUTES']['*']: PUBLISHERS has no 'a'."),
        (
            "E002",
            {"LOCK": {"OPTIONS": {"leese": 5}}},
            "['LOCK']['OPTIONS']['leese'] is not known. Did you mean 'lease'?",
        ),
        (
            "E002",
            {"LOCK": {"BACKEND": LEASE, "OPTIONS": {"leese": 5}}},
            "['LOCK']['OPTIONS']['leese'] is not known. Did you mean 'lease'?",
        ),
        ("E002", {"LOCK": {"OPTIONS": {"lease": 0}}}, "['LOCK']['OPTIONS']: lease must be"),
        ("E002", {"LOCK": {"BACKEND": "shop.Lock"}}, "['LOCK']['BACKEND']: No module named"),
        (
            "E002",
            {"LOCK": {"OPTIONS": {"session_using": "direct"}}},
            "session_using names no database alias: 'direct'",
        ),
        (
            "E003",
            {"PUBLISHERS": {"default": {"BACKEND": CALLABLE}}},
            "['PUBLISHERS']['default']['OPTIONS']: ",
        ),
        (
            "E003",
            {"PUBLISHERS": {"default": {"BACKEND": RABBIT, "OPTIONS": {"uri": "u"}}}},
            "['PUBLISHERS']['default']['OPTIONS']['uri'] is not known. Did you mean 'url'?",
        ),
        (
            "E003",
            {"PUBLISHERS": {"default": {"BACKEND": LEASE}}},
            "['PUBLISHERS']['default']['BACKEND']: " + LEASE + " is no BasePublisher.",
        ),
        (
            "E003",
            {"PUBLISHERS": {"default": {"BACKEND": PUBLISHER}}},
            "['PUBLISHERS']['default']['BACKEND']: "
            + PUBLISHER
            + " does not define publish_batch.",
        ),
        (
            "E004",
            {"ARCHIVE": {"BACKEND": LEASE}},
            "['ARCHIVE']['BACKEND']: " + LEASE + " is no BaseArchive.",
        ),
        (
            "E005",
            {"SWEEPER": {"batch_sise": 3}},
            "['SWEEPER']['batch_sise'] is not known. Did you mean 'batch_size'?",
        ),
        ("E005", {"SWEEPER": {"interval": 0}}, "['SWEEPER']: interval must be a number above 0"),
        ("E005", {**WHOLE, "SWEEPER": {"shards": 2}}, "['SWEEPER']: shards"),
        (
            "E006",
            {"ARCHIVER": {"min_age": 3}},
            "['ARCHIVER']['min_age'] is not known. Did you mean 'minimum_age'?",
        ),
        ("E006", {"ARCHIVER": {"minimum_age": -1}}, "['ARCHIVER']: minimum_age must be"),
        ("E007", {"PUBLISH": {"max_bytes": 0}}, "['PUBLISH']: max_bytes must be a whole number"),
        (
            "E012",
            {"TOPICS": {"*": {"dead_hed": "skip"}}},
            "['TOPICS']['*']['dead_hed'] is not known. Did you mean 'dead_head'?",
        ),
        ("E012", {"TOPICS": {"*": {"dead_head": "s"}}}, "['TOPICS']['*']: dead_head must be"),
    ],
)
def test_what_is_wrong_is_told_once_with_its_full_path(
    number: str, sections: dict[str, Any], words: str
) -> None:
    (message,) = check_outbox(**sections)
    assert said([message]) == [number]
    assert message.msg.startswith("OUTBOX_LOCK['default']")
    assert words in message.msg


def test_several_mistakes_are_told_together() -> None:
    wrong = {"SWEEPER": {"a": 1}, "ARCHIVER": {"a": 1}, "PUBLISH": {"a": 1}}
    assert said(check_outbox(**wrong)) == ["E005", "E006", "E007"]


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dotted: str) -> None:
        raise ImportError("RabbitMQPublisher needs pika: run `pip install …[rabbitmq]`.")

    monkeypatch.setattr("django_outbox_lock.handlers.import_string", refuse)
    (message,) = configuration._tried(lambda: configuration._built(BasePublisher, _rabbit()))
    assert said([message]) == ["E003"]
    assert "needs pika" in message.msg


def _rabbit() -> Any:
    from django_outbox_lock.conf import BackendSettings

    return BackendSettings("OUTBOX_LOCK['default']['PUBLISHERS']['default']", RABBIT)


def test_no_publisher_is_no_mistake_and_nothing_is_logged(
    settings: Settings, package_log: pytest.LogCaptureFixture
) -> None:
    """A project may publish before anybody sends, and `migrate` runs the checks."""
    settings.DEBUG = True
    assert check_outbox() == []
    assert package_log.records == []


def test_the_in_memory_lock_beside_an_external_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    (message,) = check_outbox(LOCK={"BACKEND": IN_MEMORY})
    assert said([message]) == ["W002"]
    monkeypatch.undo()
    assert check_outbox(LOCK={"BACKEND": IN_MEMORY}) == []


# The routers


class Router:
    """Sends one model to another alias than the rest, and lets `migrate` make what it is told."""

    def __init__(
        self, *, default: str = "default", apart: type[Model] | None = None, migrate: bool = True
    ) -> None:
        self._default = default
        self._apart = apart
        self._migrate = migrate

    def db_for_write(self, model: type[Model], **hints: Any) -> str:
        return "other" if model is self._apart else self._default

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return self._migrate or app_label != "django_outbox_lock"


@pytest.mark.parametrize("model", [OutboxMessage, Lock, TopicState])
def test_routers_that_tear_an_outbox_apart(settings: Settings, model: type[Model]) -> None:
    """K2: a fence in another database protects nothing."""
    settings.DATABASE_ROUTERS = [Router(apart=model)]
    (message,) = configuration.check_routers()
    assert said([message]) == ["E008"]
    assert f"{model.__name__} to 'other'" in message.msg


def test_routers_that_keep_it_together(settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [Router(default="other")]
    settings.OUTBOX_LOCK = {"default": {}, "other": {}}
    assert configuration.check_routers() == []
    settings.DATABASE_ROUTERS = []
    assert configuration.check_routers() == []


def test_publish_would_write_where_no_outbox_is(settings: Settings) -> None:
    settings.OUTBOX_LOCK = {"other": {}}
    (message,) = configuration.check_routers()
    assert said([message]) == ["W004"]
    assert "'default', which has no outbox" in message.msg


def test_routers_that_keep_the_tables_away(settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [Router(migrate=False)]
    (message,) = configuration.check_routers()
    assert said([message]) == ["E015"]
    assert "OutboxMessage" in message.msg
    assert "ProcessingLog" in message.msg


# SQLite


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"transaction_mode": "IMMEDIATE", "timeout": 20}, []),
        ({"transaction_mode": "exclusive", "timeout": 20}, []),
        ({"transaction_mode": "DEFERRED", "timeout": 20}, ["W003"]),
        ({"timeout": 20}, ["W003"]),
        ({"transaction_mode": "IMMEDIATE"}, ["W003"]),
    ],
)
def test_sqlite_has_to_wait(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], ids: list[str]
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    assert said(configuration.check_sqlite()) == ids


def test_another_database_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {})
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    assert configuration.check_sqlite() == []


# The database


class Probed(LeaseTableLock):
    """Stands in for a store that is not what it seems; ``found`` is returned or raised."""

    found: ProbeResult | Exception = ProbeResult(usable=True)

    def probe(self) -> ProbeResult:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> Callable[[ProbeResult | Exception], None]:
    """Makes the automatic choice a backend whose probe ends like that."""
    here = f"{Probed.__module__}.{Probed.__name__}"
    monkeypatch.setattr(locking, "backend_by_vendor", lambda _alias: here)
    return lambda found: monkeypatch.setattr(Probed, "found", found)


POOLED = ProbeResult(usable=False, reason="a pooler gives several clients one session")


@pytest.mark.django_db
def test_the_database_in_use_has_real_locks() -> None:
    assert databases.check_lock_store(databases=["default"]) == []


@pytest.mark.django_db
def test_a_store_that_may_forget(probed: Callable[[object], None]) -> None:
    probed(ProbeResult(usable=True, reason="its memory is a cache"))
    (message,) = databases.check_lock_store(databases=["default"])
    assert said([message]) == ["W005"]
    assert "its memory is a cache" in message.msg


@pytest.mark.django_db
def test_an_automatic_choice_falls_back(probed: Callable[[object], None]) -> None:
    probed(POOLED)
    (message,) = databases.check_lock_store(databases=["default"])
    assert said([message]) == ["W001"]
    assert "a pooler gives several clients one session" in message.msg


@pytest.mark.django_db
def test_a_forced_choice_is_an_error(probed: Callable[[object], None]) -> None:
    probed(POOLED)
    forced = {"BACKEND": f"{Probed.__module__}.{Probed.__name__}"}
    with override_outbox(LOCK=forced):
        (message,) = databases.check_lock_store(databases=["default"])
    assert said([message]) == ["E010"]


@pytest.mark.django_db
def test_a_session_that_leads_elsewhere(probed: Callable[[object], None]) -> None:
    path = "OUTBOX_LOCK['default']['LOCK']['OPTIONS']['session_using']"
    probed(InvalidSettings(f"{path}: 'other' does not lead to the database of 'default'."))
    (message,) = databases.check_lock_store(databases=["default"])
    assert said([message]) == ["E013"]


@pytest.mark.django_db
@pytest.mark.parametrize("error", [LockUnavailable("no answer"), OperationalError("no answer")])
def test_a_probe_that_could_not_be_made(probed: Callable[[object], None], error: Exception) -> None:
    probed(error)
    (message,) = databases.check_lock_store(databases=["default"])
    assert said([message]) == ["E014"]
    assert "no answer" in message.msg


@pytest.mark.django_db
def test_only_the_databases_that_are_named_are_asked(probed: Callable[[object], None]) -> None:
    probed(POOLED)
    assert databases.check_lock_store() == databases.check_lock_store(databases=[]) == []
    assert databases.check_lock_store(databases=["other"]) == []
    assert databases.check_snapshots(databases=[]) == []
    assert databases.check_uuid_columns(databases=[]) == []


@pytest.mark.django_db
def test_a_lock_that_cannot_be_built_is_told_elsewhere() -> None:
    with override_outbox(LOCK={"OPTIONS": {"lease": 0}}):
        assert databases.check_lock_store(databases=["default"]) == []


def test_nothing_is_said_before_the_tables_are_made(tmp_path: Path, run_manage: RunManage) -> None:
    """`migrate` runs the checks of its database first."""
    fresh = {URL_VARIABLES["default"]: f"sqlite:///{tmp_path}/fresh.sqlite3"}
    checked = run_manage("check", "--database", "default", env=fresh)
    assert "no issues" in checked.stdout
    run_manage("migrate", "-v0", env=fresh)
    run_manage("check", "--database", "default", "--fail-level", "WARNING", env=fresh)


@pytest.mark.parametrize(
    "vendor", [pytest.param(n, marks=pytest.mark.server(n)) for n in SESSION_LOCKS]
)
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_another_database_of_the_server_is_found_out(vendor: str) -> None:
    """Host and port would not tell."""
    with override_outbox(LOCK={"OPTIONS": {"session_using": "other"}}):
        assert said(databases.check_lock_store(databases=["default"])) == ["E013"]


@pytest.mark.server("postgresql", "pgbouncer")
@pytest.mark.django_db(transaction=True)
def test_a_pooler_in_transaction_mode(
    running_server: Callable[[str], servers.Server],
    database_urls: Callable[[], dict[str, str]],
    run_manage: RunManage,
) -> None:
    address = urlsplit(running_server("pgbouncer").url)
    urls = {
        variable: address._replace(path=urlsplit(url).path).geturl()
        for variable, url in database_urls().items()
    }
    assert "W001" in run_manage("check", "--database", "default", env=urls).stderr


# SQL Server


class Answering:
    """Stands in for a cursor of SQL Server, where there is none; keeps what it was asked."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.asked = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def execute(self, sql: str) -> None:
        self.asked = sql

    def fetchone(self) -> tuple[int]:
        return (self.answer,)


@pytest.mark.parametrize(("answer", "ids"), [(1, []), (0, ["E011"])])
def test_sql_server_needs_snapshots(
    monkeypatch: pytest.MonkeyPatch, answer: int, ids: list[str]
) -> None:
    server = Answering(answer)
    monkeypatch.setattr(connections["default"], "vendor", "microsoft")
    monkeypatch.setattr(connections["default"], "cursor", lambda: server)
    assert said(databases.check_snapshots(databases=["default"])) == ids
    assert "is_read_committed_snapshot_on" in server.asked


@pytest.mark.django_db
def test_the_database_in_use_has_what_the_sweeper_needs() -> None:
    assert databases.check_snapshots(databases=["default"]) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.server("mariadb")
def test_a_table_that_is_older_than_the_servers_uuid_is_told_with_its_cure() -> None:
    """Case 101: the hints mend the tables, and the messages in them are kept."""
    kept = OutboxMessageFactory.create()
    tables = [OutboxMessage._meta.db_table, ArchivedMessage._meta.db_table]
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} MODIFY message_id char(36) NOT NULL")
            cursor.execute(f"UPDATE {table} SET message_id = REPLACE(message_id, '-', '')")
            cursor.execute(f"ALTER TABLE {table} MODIFY message_id char(32) NOT NULL")
        with pytest.raises(DataError):
            OutboxMessageFactory.create()
        messages = databases.check_uuid_columns(databases=["default"])
        assert said(messages) == ["E016"] * 2
        for message in messages:
            cursor.execute(str(message.hint).partition(" (docs:")[0])
    assert databases.check_uuid_columns(databases=["default"]) == []
    OutboxMessageFactory.create()
    assert OutboxMessage.objects.get(message_id=kept.message_id).pk == kept.pk


@pytest.mark.parametrize(("answer", "ids"), [(2, []), (1, ["E018"])])
def test_sql_server_must_not_read_what_is_not_committed(
    monkeypatch: pytest.MonkeyPatch, answer: int, ids: list[str]
) -> None:
    server = Answering(answer)
    monkeypatch.setattr(connections["default"], "vendor", "microsoft")
    monkeypatch.setattr(connections["default"], "cursor", lambda: server)
    assert said(databases.check_isolation(databases=["default"])) == ids
    assert "@@SPID" in server.asked


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "server", [pytest.param(name, marks=pytest.mark.server(name)) for name in ("mariadb", "mysql")]
)
@pytest.mark.parametrize(
    ("level", "ids"),
    [("read uncommitted", ["E018"]), ("read committed", []), ("repeatable read", [])],
)
def test_a_sweeper_must_not_see_what_may_be_rolled_back(
    server: str, level: str, ids: list[str]
) -> None:
    with session_options(isolation_level=level):
        assert said(databases.check_isolation(databases=["default"])) == ids


@pytest.mark.django_db
def test_the_database_in_use_reads_what_is_committed() -> None:
    assert databases.check_isolation(databases=["default"]) == []
    assert databases.check_isolation(databases=["other"]) == []


@pytest.mark.parametrize(
    ("vendor", "version", "words"),
    [
        ("oracle", (), "is known for 'oracle'"),
        ("mysql", (10, 5, 9), "no JSON_TABLE before version 10.6"),
        ("mysql", (10, 6, 0), ""),
        ("cockroachdb", (), ""),
    ],
)
def test_a_database_without_the_words_for_a_page_is_told(
    monkeypatch: pytest.MonkeyPatch, vendor: str, version: tuple[int, ...], words: str
) -> None:
    """Django 5.2 works on MariaDB 10.5 and on Oracle, an outbox does not."""
    monkeypatch.setattr(connections["default"], "vendor", vendor)
    monkeypatch.setattr(connections["default"], "mysql_is_mariadb", True, raising=False)
    monkeypatch.setattr(connections["default"], "mysql_version", version, raising=False)
    messages = databases.check_dialect(databases=["default"])
    assert said(messages) == (["E017"] if words else [])
    assert all(words in message.msg for message in messages)
    assert databases.check_dialect(databases=["other"]) == []


@pytest.mark.django_db
def test_the_database_in_use_has_the_words_for_a_page() -> None:
    assert databases.check_dialect(databases=["default"]) == []


# All of them


def test_all_are_registered_and_those_that_query_are_tagged() -> None:
    found = {
        getattr(check, "__name__", ""): Tags.database in check.tags
        for check in registry.registry.get_checks()
        if check.__module__.startswith(checks.__name__)
    }
    assert found == {
        "check_settings": False,
        "check_routers": False,
        "check_sqlite": False,
        "check_lock_store": True,
        "check_snapshots": True,
        "check_uuid_columns": True,
        "check_dialect": True,
        "check_isolation": True,
    }


def test_a_wrong_setting_stops_every_command(settings: Settings) -> None:
    settings.OUTBOX_LOCK = {"default": {"SWEEPER": {"batch_sise": 3}}}
    assert "E005" in said(run_checks())


def test_the_documentation_has_an_anchor_for_each_id() -> None:
    page = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    anchors = re.findall(r"^\(([ew]\d{3})\)=$", page, re.MULTILINE)
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "django_outbox_lock").rglob("*.py")
    )
    ids = set(re.findall(r"django_outbox_lock\.([EW]\d{3})", source))
    ids |= {f"E{n:03}" for n in configuration.SECTIONS.values()}
    ids |= {f"E{int(n):03}" for n in re.findall(r"_error\(\s*(\d+)", source)}
    ids |= {f"W{int(n):03}" for n in re.findall(r"_warning\(\s*(\d+)", source)}
    assert sorted(anchors) == sorted(number.lower() for number in ids)
    assert len(anchors) == len(set(anchors))
