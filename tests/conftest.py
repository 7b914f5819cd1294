"""Fixtures that every part of the suite uses."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

import pytest
from django.db import connections

from tests import servers
from tests.plugin import RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
URL_VARIABLES = {"default": "DATABASE_URL", "other": "SECOND_DATABASE_URL"}

# The threads that look after locks live on; they are no business of one test.
KEEPERS = ("-renewer", "-watchdog")

T = TypeVar("T")


class WaitUntil(Protocol):
    """Returns the predicate's first true value, or fails at the deadline (in seconds)."""

    def __call__(self, predicate: Callable[[], T], timeout: float = ..., what: str = ...) -> T: ...


class RunManage(Protocol):
    """Runs manage.py on the test databases to its end and gives back what it said."""

    def __call__(
        self,
        *args: str,
        env: Mapping[str, str] | None = ...,
        check: bool = ...,
        timeout: float = ...,
    ) -> subprocess.CompletedProcess[str]: ...


class ManageProcess(subprocess.Popen[str]):
    """A running manage.py, whose output and errors go to a file, so that it never waits for us."""

    log: Path

    @property
    def output(self) -> str:
        """All that it has said so far."""
        return self.log.read_text(encoding="utf-8")


class StartManage(Protocol):
    """Starts manage.py on the test databases; the process is killed when the test ends."""

    def __call__(self, *args: str, env: Mapping[str, str] | None = ...) -> ManageProcess: ...


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """What a test left to threads of the lock layer ends while it still has its database."""
    try:
        return (yield)
    finally:
        deadline = time.monotonic() + 5
        # Not joined: one that is on the list need not have begun yet.
        while any(map(_will_end, threading.enumerate())) and time.monotonic() < deadline:
            time.sleep(0.002)


def _will_end(thread: threading.Thread) -> bool:
    return thread.name.startswith("outbox-lock-") and not thread.name.endswith(KEEPERS)


@pytest.fixture
def running_server(request: pytest.FixtureRequest) -> Callable[[str], servers.Server]:
    """A function that gives a server of this whole run; never kill it, others need it."""
    run = request.config.stash[RUN]

    def running(name: str) -> servers.Server:
        server = run.server(name)
        if server is None:
            pytest.fail(f"{name} was not started by this run: mark the test server({name!r})")
        return server

    return running


@pytest.fixture
def server(
    request: pytest.FixtureRequest, running_server: Callable[[str], servers.Server]
) -> servers.Server:
    """The server of the database in use."""
    return running_server(request.config.stash[RUN].database)


@pytest.fixture
def private_server(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., servers.Server]]:
    """A function that starts a fresh server for this test alone, which it may kill.

    Call it from the main thread: a server ends with the thread that started it.
    """
    with ExitStack() as stack:

        def start(name: str, **options: Any) -> servers.Server:
            server = stack.enter_context(servers.get(name, **options))
            request.config.stash[RUN].note(server)
            return server

        yield start


@pytest.fixture
def wait_until() -> WaitUntil:
    def wait(predicate: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
        deadline = time.monotonic() + timeout
        while not (value := predicate()):
            if time.monotonic() > deadline:
                pytest.fail(f"{what or predicate} not within {timeout} s")
            time.sleep(0.01)
        return value

    return wait


@pytest.fixture
def database_urls() -> Callable[[], dict[str, str]]:
    """A function that gives the URLs of the *test* databases, by environment variable."""
    return _test_database_urls


def _test_database_urls() -> dict[str, str]:
    return {
        variable: _with_name(os.environ[variable], str(connections[alias].settings_dict["NAME"]))
        for alias, variable in URL_VARIABLES.items()
        if alias in connections
    }


def _with_name(url: str, name: str) -> str:
    parts = urlsplit(url)
    return f"sqlite:///{name}" if parts.scheme == "sqlite" else parts._replace(path=name).geturl()


def _manage(args: tuple[str, ...], env: Mapping[str, str] | None) -> dict[str, Any]:
    return {
        "args": [sys.executable, str(ROOT / "manage.py"), *args],
        "env": {**os.environ, **_test_database_urls(), **(env or {})},
        "cwd": ROOT,
        "text": True,
        "stdin": subprocess.DEVNULL,
    }


@pytest.fixture
def run_manage() -> RunManage:
    def run(
        *args: str, env: Mapping[str, str] | None = None, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            **_manage(args, env), capture_output=True, timeout=timeout, check=False
        )
        if check and done.returncode:
            pytest.fail(f"manage.py {' '.join(args)} exited {done.returncode}:\n{done.stderr}")
        return done

    return run


@pytest.fixture
def start_manage(tmp_path: Path) -> Iterator[StartManage]:
    with ExitStack() as stack:
        numbers = count(1)

        def start(*args: str, env: Mapping[str, str] | None = None) -> ManageProcess:
            log = tmp_path / f"manage-{next(numbers)}.log"
            with log.open("w", encoding="utf-8") as output:
                process = ManageProcess(
                    **_manage(args, env), stdout=output, stderr=subprocess.STDOUT
                )
            process.log = log
            stack.enter_context(process)  # waits for its end,
            stack.callback(process.kill)  # after this
            return process

        yield start


@pytest.fixture
def package_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """`caplog` with everything that this package logs, from DEBUG up."""
    caplog.set_level(logging.DEBUG, logger="django_outbox_lock")
    return caplog
