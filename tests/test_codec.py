"""Payloads and headers: what comes out is what was put in, or it is refused with its name."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox_lock import codec
from django_outbox_lock.exceptions import PublishError

KATHMANDU = ZoneInfo("Asia/Kathmandu")
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAME = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=50)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (None, "null"),
        (0, "0"),
        (False, "false"),
        ("", '""'),
        ([], "[]"),
        ({}, "{}"),
        ("text", '"text"'),
        ({"a": [1, {"b": None}], "c": "d"}, '{"a":[1,{"b":null}],"c":"d"}'),
        ("a\0b", r'"a\u0000b"'),
        ("\U0001f600 é", '"\U0001f600 é"'),
        (2**53 + 1, "9007199254740993"),
        (10**30, "1" + "0" * 30),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (decimal.Decimal("10.50"), '"10.50"'),
        (decimal.Decimal("1E+30"), '"1E+30"'),
        (uuid.UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
        (dt.timedelta(days=1, microseconds=5), '"P1DT00H00M00.000005S"'),
    ],
)
def test_json_is_compact_exact_and_never_goes_through_float(payload: object, text: str) -> None:
    """Case 107: the digits that were given."""
    assert codec.encode_body(payload) == (text.encode(), "application/json")


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (dt.datetime(2026, 1, 2, 3, 4, 5, 123456), "2026-01-02T03:04:05.123456"),  # noqa: DTZ001
        (dt.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05.000000"),  # noqa: DTZ001
        (
            dt.datetime(2026, 1, 2, 3, 4, 5, 1, tzinfo=dt.UTC),
            "2026-01-02T03:04:05.000001+00:00",
        ),
        (
            dt.datetime(2026, 1, 2, 3, 4, 5, 0, tzinfo=KATHMANDU),
            "2026-01-02T03:04:05.000000+05:45",
        ),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.time(3, 4, 5, 123456), "03:04:05.123456"),
        (dt.time(3, 4, 5), "03:04:05.000000"),
        (dt.time(3, 4, 5, tzinfo=dt.UTC), "03:04:05.000000+00:00"),
    ],
)
def test_times_keep_six_digits_and_their_offset(moment: object, text: str) -> None:
    """Case 103: nothing is cut, and a zero fraction has the same form as any other."""
    assert codec.encode_body({"at": moment})[0] == b'{"at":"%b"}' % text.encode()


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_stay_as_they_are(wrap: Any) -> None:
    body = bytes(range(256))
    assert codec.encode_body(wrap(body)) == (body, "application/octet-stream")
    assert codec.encode_body(wrap(b""), "text/plain") == (b"", "text/plain")


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/vnd.shop+json; v=2", "Application/JSON"]
)
def test_json_may_have_a_name_of_its_own(content_type: str) -> None:
    assert codec.encode_body({"a": 1}, content_type) == (b'{"a":1}', content_type)


@pytest.mark.parametrize("payload", ["<order/>", {"a": 1}, None])
def test_a_content_type_that_the_body_would_not_have_is_refused(payload: object) -> None:
    with pytest.raises(PublishError, match=r"content_type 'application/xml' goes with .* bytes"):
        codec.encode_body(payload, "application/xml")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (float("nan"), "Out of range float values"),
        ([float("inf")], "Out of range float values"),
        ({"a": {float("-inf"): 1}}, "Out of range float values"),
        ({"t": "\ud83d"}, "half of a surrogate pair"),
        ("\udce5", "half of a surrogate pair"),
        ({"\ud83d": 1}, "half of a surrogate pair"),
        ({1, 2}, "set is not JSON serializable"),
        ({"a": b"bytes"}, "bytes is not JSON serializable"),
        ({(1, 2): 3}, "keys must be str"),
        (object(), "object is not JSON serializable"),
        ([10**5000], "4300 digits"),
    ],
)
def test_what_json_cannot_carry_is_refused(payload: object, words: str) -> None:
    """Case 105 among others: at the call, and never as an error of a codec."""
    with pytest.raises(PublishError, match=f"^payload .*{words}"):
        codec.encode_body(payload)


def test_endless_structures_are_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for payload in (circle, deep):
        with pytest.raises(PublishError, match=r"^payload cannot be written as JSON"):
            codec.encode_body(payload)


@given(JSON)
def test_every_json_value_comes_back(payload: Any) -> None:
    body, _ = codec.encode_body(payload)
    assert json.loads(body) == payload


@given(st.dictionaries(NAME, TEXT.filter(str.isprintable), max_size=5))
def test_all_headers_come_back_in_their_order(headers: dict[str, str]) -> None:
    again = codec.decode_headers(codec.encode_headers(headers))
    assert list(again.items()) == list(headers.items())


def test_no_headers_are_an_empty_object() -> None:
    assert codec.encode_headers(None) == codec.encode_headers({}) == "{}"
    assert codec.encode_headers({"é": ""}) == '{"é":""}'


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([("a", "b")], "headers must be a mapping, not list"),
        ({"a": 1}, r"headers\['a'\] must be a str, not int"),
        ({1: "a"}, "headers: the name 1 must be a str, not int"),
        ({"": "a"}, "headers: the name '' must have 1 to 200 characters, not 0"),
        ({"a": "b\r\nc: d"}, r"headers\['a'\] has a control character"),
        ({"a\0": "b"}, "has a control character"),
        ({"a": "\ud83d"}, r"headers\['a'\] has half of a surrogate pair"),
        ({"\ud83d": "a"}, "has half of a surrogate pair"),
    ],
)
def test_wrong_headers_are_named(headers: Any, words: str) -> None:
    with pytest.raises(PublishError, match=words):
        codec.encode_headers(headers)


@pytest.mark.parametrize("text", ["", "[]", '{"a":1}', '{"a":', "null"])
def test_damaged_headers_are_a_value_error(text: str) -> None:
    """Case 003: the sweeper must be able to tell a damaged row."""
    with pytest.raises(ValueError):
        codec.decode_headers(text)


def test_a_limit_counts_as_the_narrowest_column_does() -> None:
    assert codec.check_text("key", "\U0001f600" * 100, limit=200)
    with pytest.raises(PublishError, match="key must have 1 to 200 characters, not 202"):
        codec.check_text("key", "\U0001f600" * 101, limit=200)


def test_an_error_shows_little_of_a_long_value() -> None:
    with pytest.raises(PublishError) as caught:
        codec.check_text("key", "x" * 10_000 + "\n")
    assert len(str(caught.value)) < 200
