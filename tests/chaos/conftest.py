"""A proxy before an echo, connections to it that are closed in the end, and rooms of locks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.chaos.echo import Echo
from tests.chaos.proxy import Proxy
from tests.conftest import ROOT
from tests.locks.conftest import add_alias, make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Connect = Callable[[], socket.socket]
    Chaos = Callable[[str, int], subprocess.CompletedProcess[str]]

__all__ = ["add_alias", "chaos", "connect", "echo", "make", "proxy"]
ADDRESSES = {"DATABASE_URL", "SECOND_DATABASE_URL", "OUTBOX_TEST_REPORT"}


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as echo:
        yield echo


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Connect]:
    made: list[socket.socket] = []

    def connect() -> socket.socket:
        made.append(socket.create_connection(("127.0.0.1", proxy.port), 5))
        return made[-1]

    yield connect
    for each in made:
        each.close()


@pytest.fixture
def chaos(capsys: pytest.CaptureFixture[str]) -> Chaos:
    """A chaos run of a backend, with private servers, which it kills; its report is printed."""

    def run(backend: str, acquisitions: int) -> subprocess.CompletedProcess[str]:
        options = ["--backend", backend, "--acquisitions", str(acquisitions), "--seed", "1"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.chaos.run", *options],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name not in ADDRESSES},
            check=False,
            capture_output=True,
            text=True,
            timeout=110,
        )
        with capsys.disabled():
            print(f"\n{done.stdout}", end="")
        return done

    return run
