"""The option --on: which servers a run uses, and which tests belong to it.

Loaded with `-p tests.plugin`, before Django's settings are read: the servers named by --on are
started first, and their URLs reach the settings through the environment. An address that the
environment gives already is used as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from django.test import TransactionTestCase

from tests import servers

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

DATABASES = ("sqlite", "postgresql", "mariadb", "mysql", "mssql")
EAGER = ("rabbitmq", "pgbouncer", "chromium", "spin", "libfaketime")
# Started when a test first asks for them.
LAZY = (
    "redis",
    "dynalite",
    "moto",
    "dynamodb-local",
    "azurite",
    "secantusdb",
    "firestore",
)
SERVICES = EAGER + LAZY

# What nobody can be asked to have: a run on such a database ends with NOT_EXERCISED instead of a
# failure, and a run with such a service goes on without it.
OPTIONAL = {"mysql", "mssql", "firestore", "dynamodb-local"}
NOT_EXERCISED = 77

DATABASE_FIXTURES = {"db", "transactional_db", "live_server"}
SCHEMES = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql"}


@dataclass(frozen=True)
class Exercised:
    """A server that this run used: a line of the closing list."""

    name: str
    version: str
    label: str


@dataclass
class Run:
    """The servers of one pytest run, and what they were."""

    database: str
    names: list[str]
    started: dict[str, servers.Server] = field(default_factory=dict)
    waiting: dict[str, servers.Server] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    exercised: list[Exercised] = field(default_factory=list)
    private: bool = True
    deselected: int = 0

    def server(self, name: str) -> servers.Server | None:
        """A server of this run, started when it is first asked for; None when it has no such."""
        if name in self.waiting:
            self.add(name, self.waiting[name].start())
            del self.waiting[name]
        return self.started.get(name)

    def add(self, name: str, server: servers.Server) -> None:
        self.started[name] = server
        self.note(server)

    def note(self, server: servers.Server) -> None:
        """Put a running server on the list of what was exercised, once."""
        if all(item.name != server.title for item in self.exercised):
            self.exercised.append(Exercised(server.title, server.version, server.label))


RUN = pytest.StashKey[Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--on",
        action="append",
        choices=DATABASES + SERVICES,
        help="server to run on, repeatable: one database (default: sqlite) and any services",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Start the servers; a wrapper, so that it runs before pytest-django reads the settings."""
    options = early_config.known_args_namespace
    early_config.addinivalue_line("markers", "server(name): needs this server, started by --on")
    run = plan(options.on or [])
    early_config.stash[RUN] = run
    if not (options.help or options.version):
        start_database(early_config, run)
        for name in [name for name in run.names if name in SERVICES]:
            (start if name in EAGER else find)(early_config, run, name)
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Leave the test databases to the end of their server.

    It is private and goes away as a whole, while dropping a database would have to wait for every
    session of a pooler or of a process that a test killed.
    """
    if config.stash[RUN].private:
        config.option.reuse_db = True


def plan(names: list[str]) -> Run:
    """One database, by option, by the given DATABASE_URL or SQLite, and the services."""
    databases = [name for name in names if name in DATABASES]
    if len(databases) > 1:
        msg = f"--on takes one database in a run, not {' and '.join(databases)}"
        raise pytest.UsageError(msg)
    if not databases:
        scheme = urlsplit(os.environ.get("DATABASE_URL", "sqlite:")).scheme
        databases = [SCHEMES.get(scheme, scheme)]
    return Run(databases[0], [*databases, *(name for name in names if name in SERVICES)])


def start_database(config: pytest.Config, run: Run) -> None:
    if run.database == "mssql" and "MSSQL_URL" in os.environ:
        os.environ.setdefault("DATABASE_URL", os.environ["MSSQL_URL"])
    if "DATABASE_URL" in os.environ:
        run.private = False
        run.exercised.append(Exercised(run.database, "given by its address", "real server"))
    elif run.database == "sqlite":
        os.environ["DATABASE_URL"] = f"sqlite:///{private_folder(config)}/default.sqlite3"
        run.exercised.append(Exercised("SQLite", sqlite3.sqlite_version, "real server"))
    elif run.database == "mssql":
        not_exercised("mssql", "MSSQL_URL is not set")
    else:
        os.environ["DATABASE_URL"] = start(config, run, run.database).url
    os.environ.setdefault("SECOND_DATABASE_URL", other_database(os.environ["DATABASE_URL"]))


def private_folder(config: pytest.Config) -> str:
    folder = tempfile.mkdtemp(prefix="outbox-sqlite-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def other_database(url: str) -> str:
    """A second database on the same server; only its test database is ever created."""
    address, mark, options = url.partition("?")
    return url if ":memory:" in url else f"{address}_other{mark}{options}"


def start(config: pytest.Config, run: Run, name: str) -> servers.Server:
    """Start the server *name* for the whole run, or end the run with the reason."""
    options = {}
    if name == "pgbouncer" and "postgresql" in run.started:
        options["upstream"] = run.started["postgresql"]
    server = servers.get(name, **options)
    try:
        server.start()
    except servers.ServerMissing as missing:
        if name in OPTIONAL:
            not_exercised(name, str(missing))
        msg = f"--on {name}: {missing}"
        raise pytest.UsageError(msg) from None
    config.add_cleanup(server.close)
    run.add(name, server)
    if name == "rabbitmq":
        os.environ.setdefault("BROKER_URL", server.url)
    return server


def find(config: pytest.Config, run: Run, name: str) -> None:
    """Have the service *name* ready to be started, or go on without it if it is optional."""
    server = servers.get(name)
    if reason := server.missing():
        if name not in OPTIONAL:
            msg = f"--on {name}: {reason}"
            raise pytest.UsageError(msg)
        run.missing[name] = reason
        run.names.remove(name)
    else:
        config.add_cleanup(server.close)
        run.waiting[name] = server


def not_exercised(name: str, reason: str) -> None:
    write_report([], {name: reason})
    sys.stderr.write(f"not exercised: {name} ({reason})\n")
    raise SystemExit(NOT_EXERCISED)


def write_report(
    exercised: list[Exercised],
    missing: dict[str, str],
    passed: int = 0,
    failed: Sequence[str] = (),
) -> None:
    """For scripts/dev.py, which closes with one list over all runs."""
    if path := os.environ.get("OUTBOX_TEST_REPORT"):
        report = {
            "exercised": [asdict(item) for item in exercised],
            "not_exercised": missing,
            "passed": passed,
            "failed": failed,
        }
        Path(path).write_text(json.dumps(report), encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash[RUN]
    chosen = [item for item in items if belongs(item, run)]
    dropped = [item for item in items if not belongs(item, run)]
    run.deselected = len(dropped)
    config.hook.pytest_deselected(items=dropped)
    items[:] = chosen


def belongs(item: pytest.Item, run: Run) -> bool:
    """Whether the test runs in this run.

    One that names servers, where all of them are; one that uses the database, on every database;
    any other only once, with SQLite.
    """
    named = {name for marker in item.iter_markers("server") for name in marker.args}
    if named:
        return named <= set(run.names)
    return run.database == "sqlite" or uses_database(item)


def uses_database(item: pytest.Item) -> bool:
    if item.get_closest_marker("django_db"):
        return True
    case = getattr(item, "cls", None)
    if isinstance(case, type) and issubclass(case, TransactionTestCase):
        return True
    return not DATABASE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    stats = terminalreporter.stats
    failed = [report.nodeid for key in ("failed", "error") for report in stats.get(key, [])]
    run = config.stash[RUN]
    write_report(run.exercised, run.missing, len(stats.get("passed", [])), failed)
    terminalreporter.section("servers exercised")
    for item in run.exercised:
        terminalreporter.write_line(f"{item.name} {item.version} ({item.label})")
    for name, reason in run.missing.items():
        terminalreporter.write_line(f"not exercised: {name} ({reason})")
    if run.deselected:
        terminalreporter.write_line(
            f"{run.deselected} tests deselected: they belong to servers that --on did not name"
        )
