"""The proxy does to connections what its methods say, and nothing when it is well."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from tests.chaos.echo import QUIET, ask, is_silent
from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from tests.chaos.conftest import Connect
    from tests.chaos.echo import Echo
    from tests.conftest import WaitUntil


def test_a_well_proxy_only_counts(proxy: Proxy, connect: Connect, wait_until: WaitUntil) -> None:
    first, second = connect(), connect()
    assert ask(first) == ask(second) == b"<hello>"
    assert (proxy.accepted, proxy.live, proxy.sent, proxy.received) == (2, 2, 10, 14)
    first.close()
    wait_until(lambda: proxy.live == 1)
    assert proxy.lost == 0


def test_much_passes_unchanged(proxy: Proxy, connect: Connect, echo: Echo) -> None:
    body = bytes(range(256)) * 8192
    connection = connect()
    sender = threading.Thread(target=connection.sendall, args=(body,))
    sender.start()
    answer = bytearray()
    while len(answer) < len(body) + 2 * max(1, len(echo.heard)):
        answer += connection.recv(65536)
        if sum(map(len, echo.heard)) == len(body) == len(answer) - 2 * len(echo.heard):
            break
    sender.join(5)
    assert b"".join(echo.heard) == body
    assert proxy.sent == len(body)
    assert proxy.received == len(answer)


def test_half_of_a_connection_can_end(connect: Connect, echo: Echo, wait_until: WaitUntil) -> None:
    connection = connect()
    connection.sendall(b"last")
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(99) == b"<last>"
    assert connection.recv(99) == b""
    wait_until(lambda: echo.ends == ["FIN"])


def test_a_reset_is_passed_on(connect: Connect, echo: Echo, wait_until: WaitUntil) -> None:
    connection = connect()
    ask(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    wait_until(lambda: echo.ends == ["RST"])


def test_a_dead_server_resets(proxy: Proxy, connect: Connect, echo: Echo) -> None:
    echo.close()
    with pytest.raises(ConnectionResetError):
        connect().recv(1)
    echo.listener = socket.create_server(("127.0.0.1", 0))


def test_latency_is_of_each_way_and_ends(proxy: Proxy, connect: Connect) -> None:
    connection = connect()
    ask(connection)

    def seconds() -> float:
        began = time.monotonic()
        assert ask(connection) == b"<hello>"
        return time.monotonic() - began

    with proxy.delay(0.1):
        assert 0.2 <= seconds() < 5
    assert min(seconds() for _ in range(5)) < 0.2  # a busy machine may be late, but not each time


def test_frozen_bytes_arrive_in_the_end(proxy: Proxy, connect: Connect, echo: Echo) -> None:
    connection = connect()
    ask(connection)
    with proxy.freeze():
        connection.sendall(b"held")
        newer = connect()
        newer.sendall(b"too")
        assert is_silent(connection)
        assert is_silent(newer)
        assert echo.heard == [b"hello"]
    assert connection.recv(99) == b"<held>"
    assert newer.recv(99) == b"<too>"
    assert proxy.lost == 0


def test_the_end_of_a_client_is_frozen_too(
    proxy: Proxy, connect: Connect, echo: Echo, wait_until: WaitUntil
) -> None:
    connection = connect()
    ask(connection)
    with proxy.freeze():
        connection.close()
        time.sleep(QUIET)  # the period in which nothing may happen
        assert echo.ends == []
    wait_until(lambda: echo.ends == ["FIN"])


def test_a_black_hole_loses_bytes_and_the_connection_with_them(
    proxy: Proxy, connect: Connect, echo: Echo, wait_until: WaitUntil
) -> None:
    connection, idle = connect(), connect()
    ask(connection), ask(idle)
    with proxy.blackhole():
        connection.sendall(b"lost")
        newer = connect()
        newer.sendall(b"also")
        assert is_silent(connection)
        assert is_silent(newer)
        wait_until(lambda: proxy.lost == 8)
        assert echo.ends == []
    for each in (connection, newer):
        with pytest.raises(ConnectionResetError):
            each.recv(1)
    assert ask(idle) == b"<hello>"
    assert b"lost" not in echo.heard
    wait_until(lambda: proxy.live == 1)


def test_new_connections_are_reset(proxy: Proxy, connect: Connect) -> None:
    living = connect()
    ask(living)
    with proxy.reset_new():
        with pytest.raises(ConnectionResetError):
            connect().recv(1)
        assert ask(living) == b"<hello>"
    assert ask(connect()) == b"<hello>"


def test_new_connections_are_refused(proxy: Proxy, connect: Connect) -> None:
    living = connect()
    ask(living)
    with proxy.refuse():
        with pytest.raises(ConnectionRefusedError):
            connect()
        assert ask(living) == b"<hello>"
    assert ask(connect()) == b"<hello>"


def test_a_cut_resets_both_sides(
    proxy: Proxy, connect: Connect, echo: Echo, wait_until: WaitUntil
) -> None:
    connections = [connect(), connect()]
    for each in connections:
        ask(each)
    assert proxy.cut() == 2
    for each in connections:
        with pytest.raises(ConnectionResetError):
            each.recv(1)
    wait_until(lambda: echo.ends == ["RST", "RST"])
    wait_until(lambda: proxy.live == 0)
    assert proxy.cut() == 0
    assert ask(connect()) == b"<hello>"


def test_a_cut_need_not_reach_the_server(
    proxy: Proxy, connect: Connect, echo: Echo, wait_until: WaitUntil
) -> None:
    """As when a firewall forgets a connection: the server's session lives on."""
    connection = connect()
    ask(connection)
    proxy.cut(server=False)
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    time.sleep(QUIET)  # the period in which nothing may happen
    assert echo.ends == []
    proxy.heal()
    wait_until(lambda: echo.ends == ["RST"])


def test_down_is_an_orderly_end(
    proxy: Proxy, connect: Connect, echo: Echo, wait_until: WaitUntil
) -> None:
    connection = connect()
    ask(connection)
    with proxy.down():
        assert connection.recv(1) == b""
        wait_until(lambda: echo.ends == ["FIN"])
        with pytest.raises(ConnectionRefusedError):
            connect()
    assert ask(connect()) == b"<hello>"


def test_addresses_lead_through_it(proxy: Proxy, echo: Echo) -> None:
    given = f"BlobEndpoint=http://127.0.0.1:{echo.port}/outbox;"
    assert proxy.through(given) == f"BlobEndpoint=http://127.0.0.1:{proxy.port}/outbox;"


def test_its_end_leaves_no_thread_and_frees_the_port(echo: Echo) -> None:
    before = threading.active_count()
    with Proxy(echo.port) as proxy:
        connection = socket.create_connection(("127.0.0.1", proxy.port), 5)
        ask(connection)
        proxy.freeze()
        connection.sendall(b"held for ever")
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    connection.close()
    assert threading.active_count() <= before + 1  # the echo's thread for this connection
    with socket.create_server(("127.0.0.1", proxy.port)):
        pass


def test_its_end_ends_connections_that_are_being_made() -> None:
    """The server has not taken its side yet, or the proxy's own loop has not begun with it."""
    with ExitStack() as made:
        full = made.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        made.enter_context(socket.create_connection(full.getsockname()))
        with Proxy(full.getsockname()[1]) as proxy:
            clients = [
                made.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 5))
                for _ in range(20)
            ]
        for each in clients:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
