"""Errors become texts that every database keeps."""

from __future__ import annotations

import time

import pytest

from django_outbox_lock.errortext import LIMIT, clean, describe, innermost, place, text_of


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("no way", "ValueError: no way"),
        ("", "ValueError: "),
        ("a\0b", "ValueError: a?b"),
        ("\ud83d", "ValueError: ?"),
        ("amqp://shop:s3cret@broker/", "ValueError: amqp://shop:***@broker/"),
        ("amqp://shop:s3@cret@broker/", "ValueError: amqp://shop:***@broker/"),
        ("no password: http://broker/a:b@c", "ValueError: no password: http://broker/a:b@c"),
    ],
)
def test_type_and_message_without_what_must_not_be_kept(message: str, text: str) -> None:
    assert describe(ValueError(message)) == text


def test_the_length_is_bounded_as_sql_server_counts_it() -> None:
    text = describe(ValueError("😀" * LIMIT))
    assert LIMIT - 1 <= len(text.encode("utf-16-le")) // 2 <= LIMIT
    assert text.endswith("😀")


def test_a_long_text_full_of_urls_takes_no_minutes() -> None:
    began = time.process_time()
    text = describe(ValueError("http://shop:80/," * 20_000))
    assert time.process_time() - began < 1
    assert len(text) == LIMIT


def test_half_a_password_at_the_end_of_what_is_looked_at() -> None:
    """What was taken for a password before it, up to an address of mail, brings it into sight."""
    body = f"http://shop:80/{'x' * 7000},mail=a@b.c"
    reached = "cannot reach amqp://user:"
    text = f"{body}{reached:>{8000 - len(body) - 6}}secret-password@broker"
    assert "secret" in text[:8000]
    assert "password" not in text[:8000]
    assert clean(text).endswith(f"{reached}***")


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError


def test_an_error_that_cannot_be_shown_hides_nothing() -> None:
    assert describe(Mute()) == "Mute: (its text cannot be had: LookupError)"
    assert text_of(3) == "3"


def test_the_place_is_where_their_code_begins_and_where_it_ended() -> None:
    def inner() -> None:
        int("x")

    def outer() -> None:
        inner()

    with pytest.raises(ValueError) as raised:
        outer()
    first, last = place(raised.value).split(" ... ")
    assert first.startswith("test_errortext.py:")
    assert last.endswith(" in inner")
    assert place(ValueError("never raised")) == ""


def test_a_group_names_its_members() -> None:
    inner = ExceptionGroup("b", [ValueError("c")])
    group = ExceptionGroup("a", [LookupError("x"), inner])
    assert describe(group) == (
        "ExceptionGroup: a (2 sub-exceptions) "
        "[LookupError: x; ExceptionGroup: b (1 sub-exception) [ValueError: c]]"
    )


def test_the_only_member_of_a_group_is_what_was_raised() -> None:
    error = ValueError("c")
    assert innermost(ExceptionGroup("a", [ExceptionGroup("b", [error])])) is error
    assert innermost(error) is error
