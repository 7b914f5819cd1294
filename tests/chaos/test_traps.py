"""Faults that strike once, in the reply to one request: it was applied, the answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos.echo import ask, is_silent, read_until_reset
from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests import servers
    from tests.chaos.conftest import Connect
    from tests.chaos.echo import Echo


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
