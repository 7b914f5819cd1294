"""The proxy does to connections what its methods say, and nothing when it is well."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests import servers
    from tests.conftest import WaitUntil

    Connect = Callable[[], socket.socket]

QUIET = 0.15


class Echo:
    """A server that remembers what reached it, and answers each piece with ``<piece>``."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.heard: list[bytes] = []
        self.ends: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(65536):
                    self.heard.append(piece)
                    connection.sendall(b"<" + piece + b">")
                self.ends.append("FIN")
            except OSError:
                self.ends.append("RST")

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


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


def ask(connection: socket.socket, question: bytes = b"hello") -> bytes:
    connection.sendall(question)
    return connection.recv(65536)


def read_until_reset(connection: socket.socket) -> bytes:
    got = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(99):
            got += piece
        pytest.fail("the connection was closed, not reset")
    return got


def is_silent(connection: socket.socket) -> bool:
    """Whether the connection is open and nothing comes for a moment."""
    connection.settimeout(QUIET)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)


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
    with proxy.delay(0.1):
        began = time.monotonic()
        assert ask(connection) == b"<hello>"
        assert 0.2 <= time.monotonic() - began < 2
    began = time.monotonic()
    ask(connection)
    assert time.monotonic() - began < 0.1


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


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_truncated_reply(proxy: Proxy, connect: Connect, echo: Echo, after: int) -> None:
    """The request was applied; of the answer, ``after`` bytes came."""
    connection = connect()
    ask(connection)
    proxy.truncate_reply(after)
    connection.sendall(b"hello")
    assert proxy.wait_struck()
    assert read_until_reset(connection) == b"<hello>"[:after]
    assert echo.heard == [b"hello", b"hello"]
    assert ask(connect()) == b"<hello>"


def test_a_dropped_reply_leaves_a_silent_connection(
    proxy: Proxy, connect: Connect, echo: Echo
) -> None:
    connection, other = connect(), connect()
    proxy.drop_reply()
    connection.sendall(b"hello")
    assert proxy.wait_struck()
    connection.sendall(b"again")
    assert is_silent(connection)
    assert echo.heard == [b"hello"]
    assert ask(other) == b"<hello>"
    proxy.heal()
    with pytest.raises(ConnectionResetError):
        connection.recv(1)


def test_a_trap_waits_for_its_request(proxy: Proxy, connect: Connect) -> None:
    """Also when the request comes in pieces; what others ask meanwhile is answered."""
    connection, other = connect(), connect()
    ask(connection, b"before")
    proxy.truncate_reply(request=b"release")
    assert ask(connection, b"obtain") == b"<obtain>"
    assert ask(other, b"renew") == b"<renew>"
    assert ask(connection, b"rel") == b"<rel>"
    with pytest.raises(ConnectionResetError):
        ask(connection, b"ease")
    assert proxy.wait_struck()
    assert ask(other, b"release") == b"<release>"


def test_a_trap_can_be_taken_away(proxy: Proxy, connect: Connect) -> None:
    proxy.truncate_reply()
    proxy.heal()
    assert ask(connect()) == b"<hello>"
    assert not proxy.wait_struck(0)


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


@pytest.mark.server("redis")
def test_applied_but_the_answer_was_lost(
    running_server: Callable[[str], servers.Server],
) -> None:
    """With a real server and its client: the error says nothing of what was done."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    server = running_server("redis")
    with Proxy(server.port) as proxy:
        options: dict[str, Any] = {"socket_timeout": 0.5, "retry": Retry(NoBackoff(), 0)}
        with redis.Redis.from_url(proxy.through(server.url), **options) as client:
            client.set("harness", "before")
            proxy.truncate_reply(request=b"after the cut")
            with pytest.raises(redis.ConnectionError):
                client.set("harness", "after the cut")
            assert client.get("harness") == b"after the cut"
            proxy.drop_reply(request=b"after the silence")
            with pytest.raises(redis.TimeoutError):
                client.set("harness", "after the silence")
            assert client.get("harness") == b"after the silence"
