"""Options of the RabbitMQ publisher: what is wrong with them is said when they are read."""

from __future__ import annotations

import datetime as dt
import errno
import inspect
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.backends.publishers.rabbitmq import RabbitMQPublisher, to_envelope
from django_outbox_lock.backends.publishers.rabbitmq.messages import to_message
from django_outbox_lock.backends.publishers.rabbitmq.parameters import parameters
from django_outbox_lock.engines.options import SweeperOptions
from django_outbox_lock.exceptions import InvalidSettings, TransportDown
from django_outbox_lock.handlers import construct, load
from tests.publishers.envelopes import make_envelope

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings

URL = "amqp://guest:guest@localhost/"
TLS = "amqps://localhost/?ssl_options="
PATH = "OUTBOX_LOCK['default']['PUBLISHERS']['default']"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": None}, "url must be amqp:// or amqps://, not None"),
        ({"url": "http://localhost/"}, "url must be amqp:// or amqps://"),
        ({"url": URL + "?heartbeat=5"}, "url has heartbeat"),
        ({"window": 0}, "window must be a whole number of at least 1, not 0"),
        ({"heartbeat": 0}, "heartbeat must be a whole number of at least 1, not 0"),
        ({"heartbeat": 65_536}, "heartbeat must be at most 65535, not 65536"),
        ({"connect_timeout": 0}, "connect_timeout must be a number above 0, not 0"),
        ({"confirm_timeout": 0}, "confirm_timeout must be a number above 0, not 0"),
        ({"confirm_timeout": float("inf")}, "confirm_timeout must be at most 86400, not inf"),
        ({"connect_timeout": "5"}, "connect_timeout must be a number above 0, not '5'"),
        ({"exchange": "x" * 256}, "the exchange has 256"),
        ({"routing_key": "{tenant}"}, "routing_key has {topic}, {key}: not '{tenant}'"),
        ({"routing_key": "{"}, "routing_key"),
        ({"windows": 1}, "Did you mean 'window'"),
        ({"window": "500"}, "window must be a whole number of at least 1, not '500'"),
        ({"window": 1.5}, "window must be a whole number of at least 1, not 1.5"),
        ({"heartbeat": None}, "heartbeat must be a whole number of at least 1, not None"),
        ({"heartbeat": 30.5}, "heartbeat must be a whole number of at least 1, not 30.5"),
        ({"exchange": None}, "exchange must be a text .*, not None"),
        ({"url": TLS + "{'ca_certs':'/no/such.pem'}"}, "url: .*No such file"),
        ({"url": TLS + "{'ca_certs':'/etc/passwd'}"}, "url: .*no certificate"),
        ({"url": TLS + "{'ca_certs':"}, "url: ssl_options"),
        ({"url": TLS + "1"}, "url: "),
    ],
)
def test_wrong_option_is_named_with_its_place(options: dict[str, Any], words: str) -> None:
    dotted = "django_outbox_lock.backends.publishers.rabbitmq.RabbitMQPublisher"
    publisher = load(PATH, dotted, BasePublisher)
    assert publisher is RabbitMQPublisher
    with pytest.raises(InvalidSettings, match=words) as failure:
        construct(publisher, {"url": URL} | options, f"{PATH}['OPTIONS']")
    assert str(failure.value).startswith(f"{PATH}['OPTIONS']")


def test_every_wait_is_bounded() -> None:
    result = parameters(URL, connect_timeout=3, confirm_timeout=7, heartbeat=11)
    assert result.socket_timeout == result.stack_timeout == 3
    assert result.blocked_connection_timeout == 7
    assert result.heartbeat == 11
    assert result.connection_attempts == 1
    assert "django-outbox-lock" in result.client_properties["connection_name"]


def test_a_silent_broker_is_told_before_the_sweeper_blames_a_message() -> None:
    """Case 007: ``TransportDown`` uses up nobody's attempts, a call that hangs does."""
    ours = inspect.signature(RabbitMQPublisher).parameters
    patience = ours["connect_timeout"].default + ours["confirm_timeout"].default
    assert patience < SweeperOptions().send_timeout


def test_amqps_verifies_the_server() -> None:
    result = parameters("amqps://localhost/", connect_timeout=3, confirm_timeout=7, heartbeat=11)
    assert result.port == 5671
    assert result.ssl_options.context.verify_mode == ssl.CERT_REQUIRED
    assert result.ssl_options.context.check_hostname


@pytest.mark.parametrize("correlation_id", ["", "c-1", "ü" * 200])
def test_message_carries_the_whole_envelope(correlation_id: str) -> None:
    envelope = make_envelope(key="", headers={"a": "ü"}, correlation_id=correlation_id)
    message = to_message(envelope, "shop", "key")
    assert to_envelope(message.properties, message.body) == envelope
    expected = correlation_id if correlation_id == "c-1" else None
    assert message.properties.correlation_id == expected
    assert message.header_size > len(b"".join(message.properties.encode()))


@pytest.mark.parametrize("password", ["hid#den", "hid/den", "hid?den", "hid[den"])
def test_a_password_that_is_not_encoded_is_told_and_not_shown(password: str) -> None:
    with pytest.raises(ValueError, match="percent-encoded") as refused:
        RabbitMQPublisher(url=f"amqp://shop:{password}@localhost:5672/")
    assert "hid" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


@pytest.mark.parametrize("missing", ["message_id", "headers"])
def test_a_stranger_among_the_messages_is_an_error_that_is_documented(missing: str) -> None:
    properties = to_message(make_envelope(), "shop", "key").properties
    setattr(properties, missing, None)
    with pytest.raises(ValueError, match="does not come from an outbox"):
        to_envelope(properties, b"")


def test_what_brokers_add_is_no_header_of_the_message() -> None:
    """A dead-letter exchange adds lists of tables, which nobody could publish again."""
    envelope = make_envelope(headers={"tenant": "7"})
    properties = to_message(envelope, "shop", "key").properties
    properties.headers["x-death"] = [{"count": 1, "queue": "orders"}]
    assert to_envelope(properties, envelope.body) == envelope


def test_a_time_travels_with_its_offset_and_arrives_as_the_consumer_has_times(
    settings: Settings,
) -> None:
    """Without time zones in Django a time is local: the consumer's is another one."""
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kathmandu"
    envelope = make_envelope(created_at=dt.datetime(2026, 7, 1, 17, 45, 0, 7))  # noqa: DTZ001
    message = to_message(envelope, "shop", "key")
    assert message.properties.headers["outbox-created-at"] == "2026-07-01T17:45:00.000007+05:45"
    assert message.properties.timestamp == 1782907200
    assert to_envelope(message.properties, b"").created_at == envelope.created_at
    settings.USE_TZ = True
    noon = dt.datetime(2026, 7, 1, 12, 0, 0, 7, tzinfo=dt.UTC)
    assert to_envelope(message.properties, b"").created_at == noon


@pytest.mark.parametrize(
    ("path", "virtual_host"),
    [("", "/"), ("/", "/"), ("//", "/"), ("/%2F", "/"), ("/shop", "shop"), ("/a%2Fb", "a/b")],
)
def test_a_virtual_host_as_urls_have_it(path: str, virtual_host: str) -> None:
    """Celery's default has two slashes."""
    url = f"amqp://guest:guest@localhost:5672{path}"
    result = parameters(url, connect_timeout=3, confirm_timeout=7, heartbeat=11)
    assert result.virtual_host == virtual_host


def test_a_virtual_host_is_not_cut_at_a_slash() -> None:
    """What is right of it would be lost without a word."""
    result = parameters("amqp://h/a/b", connect_timeout=3, confirm_timeout=7, heartbeat=11)
    assert result.virtual_host == "a/b"


def test_certificates_that_are_gone_for_a_while_are_no_messages_fault(tmp_path: Path) -> None:
    """They are read anew for each connection, and are replaced from time to time."""
    authorities = tmp_path / "ca.pem"
    names = ["-subj", "/CN=localhost", "-keyout", str(tmp_path / "key"), "-out", str(authorities)]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"]
    subprocess.run([*new, *names], check=True, capture_output=True, timeout=60)
    publisher = RabbitMQPublisher(url=TLS + f"{{'ca_certs':'{authorities}'}}")
    authorities.unlink()
    with pytest.raises(TransportDown, match="No such file"):
        list(publisher.publish_batch([make_envelope()]))


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("pika.compat.nonblocking_socketpair", OSError(errno.EMFILE, "Too many open files")),
        ("select.epoll", OSError(errno.EMFILE, "Too many open files")),
        ("threading.Thread.start", RuntimeError("can't start new thread")),
    ],
)
def test_a_process_without_means_blames_no_message(
    monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
) -> None:
    """Neither files nor threads are to be had: that passes, and uses up nobody's attempts."""

    def fails(*_: object) -> None:
        raise error

    publisher = RabbitMQPublisher(url=URL)
    monkeypatch.setattr(place, fails)
    with pytest.raises(TransportDown, match=str(error.args[-1])):
        list(publisher.publish_batch([make_envelope()]))
