"""The console publisher prints what a developer wants to read."""

from __future__ import annotations

import io

import pytest

from django_outbox_lock.backends.publishers.console import ConsolePublisher
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Sent
from tests.publishers.envelopes import make_envelope


def printed(**fields: object) -> str:
    stream = io.StringIO()
    envelope = make_envelope(**fields)
    assert list(ConsolePublisher(stream=stream).publish_batch([envelope])) == [Sent()]
    return stream.getvalue()


def test_block_has_what_identifies_the_message() -> None:
    envelope = make_envelope(key="o-1", headers={"tenant": "7"}, correlation_id="c-1")
    stream = io.StringIO()
    list(ConsolePublisher(stream=stream).publish_batch([envelope]))
    text = stream.getvalue()
    for line in (
        "Topic: order.paid",
        "Key: o-1",
        f"Message id: {envelope.message_id}",
        "Correlation id: c-1",
        "tenant: 7",
    ):
        assert line in text.splitlines()
    assert "Causation id" not in text


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"name":"\xc3\xa9"}', '{\n  "name": "é"\n}'),
        (b"two\nlines", "two\nlines"),
        (b"\x00\xff", "2 bytes: 00 ff"),
        (b"a\x00b", "3 bytes: 61 00 62"),
    ],
)
def test_body_is_readable(body: bytes, shown: str) -> None:
    assert shown in printed(body=body)


def test_standard_output_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = ConsolePublisher()
    outcomes = iter(publisher.publish_batch([make_envelope() for _ in range(2)]))
    next(outcomes)
    assert capsys.readouterr().out.count("Topic: order.paid") == 1
    next(outcomes)
    assert capsys.readouterr().out.count("Topic: order.paid") == 1


def test_what_the_terminal_cannot_show_becomes_an_escape() -> None:
    """Else every message with an umlaut would die on a terminal that is not in UTF-8."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    envelope = make_envelope(body='"é"'.encode())
    assert list(ConsolePublisher(stream=stream).publish_batch([envelope])) == [Sent()]
    assert rb"\xe9" in raw.getvalue()


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_an_output_that_is_gone_uses_up_nobodys_attempts() -> None:
    with pytest.raises(TransportDown, match=r"cannot be written: .*Broken pipe"):
        list(ConsolePublisher(stream=Gone()).publish_batch([make_envelope()]))
