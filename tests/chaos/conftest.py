"""A proxy before an echo, connections to it that are closed in the end, and rooms of locks."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.chaos.echo import Echo
from tests.chaos.proxy import Proxy
from tests.locks.conftest import add_alias, make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Connect = Callable[[], socket.socket]

__all__ = ["add_alias", "connect", "echo", "make", "proxy"]


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
