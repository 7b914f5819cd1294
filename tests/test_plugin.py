"""--on: which tests run with which servers, and what is said about a server that is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import plugin, servers
from tests.servers.chromium import Chromium

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent

SUITE = """
import pytest
from django.test import SimpleTestCase, TestCase

def test_pure(): pass

@pytest.mark.django_db
def test_marked(): pass

def test_by_fixture(transactional_db): pass

@pytest.mark.server("rabbitmq")
def test_of_rabbitmq(): pass

@pytest.mark.server("postgresql", "pgbouncer")
def test_of_both(): pass

class Tests(TestCase):
    def test_case(self): pass

class Simple(SimpleTestCase):
    def test_simple(self): pass
"""

WITH_DATABASE = {"test_marked", "test_by_fixture", "test_case"}
PURE = {"test_pure", "test_simple"}


@pytest.fixture
def collect(tmp_path: Path) -> Callable[..., tuple[set[str], str]]:
    """A function that collects SUITE with some options: the chosen tests, and all that was said."""

    def run(*options: str, **environment: str) -> tuple[set[str], str]:
        (tmp_path / "test_it.py").write_text(SUITE)
        command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--collect-only", "-q"]
        done = subprocess.run(
            [*command, *options, str(tmp_path)],
            cwd=ROOT,
            env={**without_addresses(), **environment},
            check=True,
            capture_output=True,
            text=True,
        )
        lines = [line for line in done.stdout.splitlines() if "::" in line]
        return {line.rpartition("::")[2] for line in lines}, done.stdout

    return run


def without_addresses() -> dict[str, str]:
    names = {"DATABASE_URL", "SECOND_DATABASE_URL", "BROKER_URL", "OUTBOX_TEST_REPORT"}
    return {name: value for name, value in os.environ.items() if name not in names}


def test_plain_pytest_says_how_many_it_left_out(
    collect: Callable[..., tuple[set[str], str]],
) -> None:
    chosen, said = collect()
    assert chosen == WITH_DATABASE | PURE
    assert "2 tests deselected: they belong to servers that --on did not name" in said


def test_another_database_runs_what_uses_the_database(
    collect: Callable[..., tuple[set[str], str]],
) -> None:
    """A DATABASE_URL that is given is used as it is: here nothing listens there."""
    chosen, said = collect(DATABASE_URL="postgres://nobody@127.0.0.1:1/nowhere")
    assert chosen == WITH_DATABASE
    assert "postgresql given by its address" in said


def test_a_service_adds_its_tests(collect: Callable[..., tuple[set[str], str]]) -> None:
    """Only chromium is cheap enough to be asked for here; the rule knows no names."""
    run = plugin.plan(["rabbitmq"])
    assert (run.database, run.names) == ("sqlite", ["sqlite", "rabbitmq"])
    chosen, _ = collect("--on", "sqlite", "--on", "chromium")
    assert chosen == WITH_DATABASE | PURE


def test_two_databases_in_one_run_are_refused() -> None:
    with pytest.raises(pytest.UsageError, match="not postgresql and mariadb"):
        plugin.plan(["postgresql", "mariadb"])


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("mysql://root@127.0.0.1:3306/outbox", "mysql://root@127.0.0.1:3306/outbox_other"),
        ("mssql://sa:x@db/outbox?driver=x", "mssql://sa:x@db/outbox_other?driver=x"),
        ("sqlite:////tmp/a.sqlite3", "sqlite:////tmp/a.sqlite3_other"),
        ("sqlite://:memory:", "sqlite://:memory:"),
    ],
)
def test_the_second_database_stands_beside_the_first(url: str, other: str) -> None:
    assert plugin.other_database(url) == other


class Missing(Chromium):
    """Stands for a server that is not installed; every real one is, where this suite runs."""

    title = "Nothing"
    apt = ("nothing-server", "nothing-common")
    path = None


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(servers, "get", lambda _: Missing())
    monkeypatch.setenv("OUTBOX_TEST_REPORT", str(tmp_path / "report.json"))
    return tmp_path / "report.json"


def test_a_service_starts_when_a_test_first_asks(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Chromium stands for one here: its start only checks that it is there."""
    service = Chromium()
    monkeypatch.setattr(Chromium, "path", "true")
    monkeypatch.setattr(Chromium, "version", "1")
    monkeypatch.setattr(servers, "get", lambda _: service)
    run = plugin.plan(["redis"])
    plugin.find(pytestconfig, run, "redis")
    assert run.exercised == []
    assert run.server("redis") is run.server("redis") is service
    assert [item.name for item in run.exercised] == ["Chromium"]
    assert run.server("dynalite") is None


@pytest.mark.usefixtures("missing")
def test_a_run_goes_on_without_an_optional_service(pytestconfig: pytest.Config) -> None:
    run = plugin.plan(["firestore"])
    plugin.find(pytestconfig, run, "firestore")
    assert run.names == ["sqlite"]
    assert "Nothing is not installed" in run.missing["firestore"]
    with pytest.raises(pytest.UsageError, match="--on redis: Nothing is not installed"):
        plugin.find(pytestconfig, plugin.plan(["redis"]), "redis")


@pytest.mark.usefixtures("missing")
def test_a_missing_server_fails_with_the_line_that_installs_it(
    pytestconfig: pytest.Config,
) -> None:
    line = "apt-get install --yes --no-install-recommends nothing-server nothing-common"
    with pytest.raises(pytest.UsageError, match=line):
        plugin.start(pytestconfig, plugin.plan(["mariadb"]), "mariadb")


def test_a_missing_mysql_is_reported_not_failed(missing: Path, pytestconfig: pytest.Config) -> None:
    with pytest.raises(SystemExit) as stopped:
        plugin.start(pytestconfig, plugin.plan(["mysql"]), "mysql")
    assert stopped.value.code == plugin.NOT_EXERCISED
    assert "Nothing is not installed" in json.loads(missing.read_text())["not_exercised"]["mysql"]
