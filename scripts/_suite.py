"""`scripts/dev.py test`: the suite on every server, then the migrations on every Django."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scripts import _environments, _machine, _migrations
from scripts._environments import DEV, ROOT
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import NoReturn

SLOW_STORES = ("tests/locks/test_azure.py", "tests/locks/test_firestore.py")
STORES = (
    "tests/chaos/test_run_stores.py",
    "tests/locks/test_dynamodb.py",
    "tests/locks/test_dynamodb_faults.py",
    "tests/locks/test_given_stores.py",
    "tests/locks/test_mongodb.py",
    "tests/locks/test_redis.py",
)
FAULTS = (
    "tests/chaos/test_fault_matrix.py",
    "tests/chaos/test_run.py",
    "tests/test_servers.py",
    "tests/test_servers_clock.py",
)


@dataclass(frozen=True)
class Run:
    """One process of pytest: a database, the services whose tests go with it, and which tests.

    What mostly waits, for the leases of stores and for faults, runs beside the rest.
    """

    name: str
    servers: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    measured: bool = True


def without(*paths: str) -> tuple[str, ...]:
    """Arguments that leave tests to another run."""
    return tuple(f"--ignore={path}" for path in paths)


EMULATORS = ("redis", "dynalite", "moto", "dynamodb-local", "azurite", "secantusdb", "firestore")
POSTGRESQL = ("postgresql", "pgbouncer", *EMULATORS, "libfaketime")
RUNS = (
    Run("postgresql", POSTGRESQL, without(*STORES, *SLOW_STORES, *FAULTS)),
    Run("sqlite", ("sqlite", "rabbitmq", "chromium", "spin"), without(*STORES, *SLOW_STORES)),
    Run("slow stores", ("sqlite", *EMULATORS), SLOW_STORES),
    Run("stores", ("sqlite", *EMULATORS), STORES),
    # MariaDB goes through the same lines: to measure them twice tells nothing more.
    Run("mysql", ("mysql", "libfaketime"), without(*STORES, *SLOW_STORES), measured=False),
    Run("mariadb", ("mariadb", "libfaketime"), without(*STORES, *SLOW_STORES)),
    Run("faults on postgresql", POSTGRESQL, FAULTS),
    Run("mssql", ("mssql",)),
)
CHAOS = ("postgresql", "mariadb", "mysql", "redis", "secantusdb", "dynalite", "azurite")
CHOICES = sorted({name for run in RUNS for name in run.servers})
OPTIONAL = {"mysql", "mssql", "firestore", "dynamodb-local"}
FETCHED = {"mysql": "MySQL (70 MB)", "dynalite": "dynalite and Azurite (200 MB)"}
TITLES = {
    "mysql": "MySQL",
    "mssql": "SQL Server",
    "firestore": "Firestore emulator",
    "dynamodb-local": "DynamoDB Local",
}

# Addresses that plain pytest would use as they are; here every run starts its own servers.
GIVEN = {"DATABASE_URL", "SECOND_DATABASE_URL", "BROKER_URL"}

_running: set[subprocess.Popen[str]] = set()

# tests/plugin.py: the server cannot be had here, and nobody is asked to have it.
NOT_EXERCISED = 77
NO_TESTS = 5


@dataclass(frozen=True)
class Result:
    """How one run of pytest ended."""

    name: str
    status: int
    report: dict[str, Any]

    @property
    def failed(self) -> bool:
        return self.status not in {0, NO_TESTS, NOT_EXERCISED}


def test(arguments: list[str]) -> int:
    """Run what was asked for; without arguments, everything, with coverage and its bound."""
    parser = argparse.ArgumentParser(prog="scripts/dev.py test", allow_abbrev=False)
    parser.add_argument("--on", action="append", choices=CHOICES, help="repeatable; default: all")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time (default: 4)")
    options, rest = parser.parse_known_args(arguments)
    whole = not options.on and not rest
    python = _environments.full().python()
    asked = tuple(options.on or ())
    runs = [Run(asked[0], asked)] if asked else list(RUNS)
    provide_servers(run.servers for run in runs)
    # Where a shell has put us into the background, the runs would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt)
    results = run_all(Suite(python, rest, measured=whole), runs, options.jobs)
    failures = [result.name for result in results if result.failed]
    if all(result.status in {NO_TESTS, NOT_EXERCISED} for result in results):
        failures.append("no test ran")
    missing: dict[str, str] = {}
    if whole:
        failures += coverage(python)
        checked = _migrations.check()
        failures += checked.failed
        missing |= checked.missing
    close(results, missing, failures)
    return 1 if failures else 0


def provide_servers(groups: Iterable[Sequence[str]]) -> None:
    """Install the servers with apt; what Debian's releases lack is fetched beside them."""
    names = {name for group in groups for name in group}
    wanted = [servers.get(name) for name in sorted(names - OPTIONAL - {"sqlite"})]
    packaged = [each for each in wanted if each.apt]
    _machine.provide(_machine.Part(each.title, each.apt, each.installed) for each in packaged)
    for name in sorted(names & FETCHED.keys()):
        print(f"Looking for {FETCHED[name]}, or fetching it into the cache", flush=True)
        servers.get(name).missing()


@dataclass(frozen=True)
class Suite:
    """How pytest is called."""

    python: str
    arguments: list[str]
    measured: bool

    def command(self, run: Run) -> list[str]:
        measured = self.measured and run.measured
        runner = ["coverage", "run", "-m", "pytest"] if measured else ["pytest"]
        on = [argument for name in run.servers for argument in ("--on", name)]
        return [self.python, "-m", *runner, *on, *run.arguments, *self.arguments]


def interrupt(*_: object) -> NoReturn:
    """End the runs as Ctrl-C does, so that each stops the servers that it has started."""
    for process in list(_running):
        process.send_signal(signal.SIGINT)
    raise KeyboardInterrupt


def run_all(suite: Suite, runs: list[Run], jobs: int) -> list[Result]:
    """Each run in a process of its own; several at a time print when they end."""
    if suite.measured:
        subprocess.run([suite.python, "-m", "coverage", "erase"], check=True, cwd=ROOT)
    jobs = min(jobs, len(runs))
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda run: run_one(suite, run, streamed=jobs == 1), runs))


def run_one(suite: Suite, run: Run, *, streamed: bool) -> Result:
    report = DEV / "reports" / f"{run.name}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name not in GIVEN}
    headline = f"== {run.name}: the suite on {', '.join(run.servers)}"
    print(headline if streamed else f"{headline}: started", flush=True)
    with subprocess.Popen(
        suite.command(run),
        cwd=ROOT,
        env=inherited | {"OUTBOX_TEST_REPORT": str(report)},
        stdin=subprocess.DEVNULL,
        stdout=None if streamed else subprocess.PIPE,
        stderr=None if streamed else subprocess.STDOUT,
        text=True,
    ) as process:
        _running.add(process)
        said, _ = process.communicate()
        _running.discard(process)
    if not streamed:
        print(f"{headline}\n{said}", flush=True)
    return Result(run.name, process.returncode, read(report))


def read(report: Path) -> dict[str, Any]:
    """What tests/plugin.py left; a run that ended early leaves nothing."""
    if not report.exists():
        return {"exercised": [], "not_exercised": {}, "passed": 0, "failed": []}
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found


def coverage(python: str) -> list[str]:
    """Combine what all runs and their subprocesses measured; fails under pyproject's bound."""
    tool = [python, "-m", "coverage"]
    subprocess.run([*tool, "combine", "--quiet"], check=True, cwd=ROOT)
    return ["coverage"] if subprocess.call([*tool, "report"], cwd=ROOT) else []


def close(results: list[Result], missing: dict[str, str], failures: list[str]) -> None:
    """The closing list: what was exercised, and by name what was not and what failed."""
    print("\n== servers exercised")
    lines = [
        f"{item['name']} {item['version']} ({item['label']})"
        for result in results
        for item in result.report["exercised"]
    ]
    for result in results:
        missing |= result.report["not_exercised"]
    lines += [f"not exercised: {TITLES.get(name, name)} ({missing[name]})" for name in missing]
    print("\n".join(dict.fromkeys(lines)))
    passed = sum(result.report["passed"] for result in results)
    failed = [f"{result.name}: {test}" for result in results for test in result.report["failed"]]
    print("", *failed, f"{passed} passed, {len(failed)} failed", sep="\n", flush=True)
    if failures:
        print(f"Failed: {', '.join(failures)}", file=sys.stderr)
