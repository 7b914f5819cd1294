"""Bodies and headers of every kind, as people see them."""

from __future__ import annotations

import pytest

from django_outbox_lock.admin import body


def test_json_is_laid_out() -> None:
    assert "{\n  &quot;a&quot;: 1\n}" in body.content(b'{"a":1}')


def test_text_is_shown_as_it_is_and_escaped() -> None:
    assert "<b>" not in body.content(b"<b>bold</b>, no JSON")
    assert "&lt;b&gt;bold" in body.content(b"<b>bold</b>, no JSON")


@pytest.mark.parametrize("data", [b"\x00\x01AZ~\xff", b"\xff\xfe", b"text with \x1b[31m"])
def test_other_bytes_become_a_hex_dump(data: bytes) -> None:
    assert "00000000  " + data.hex(" ") in body.content(data)


def test_a_dump_has_sixteen_bytes_a_line() -> None:
    assert body.dump(bytes(range(60, 80))).splitlines() == [
        "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK",
        "00000010  4c 4d 4e 4f                                      LMNO",
    ]


def test_of_a_long_body_the_beginning_is_shown() -> None:
    shown = body.content(b'["' + "é".encode() * 200_000 + b'"]')
    assert "The first 65,536 bytes of 400,004 bytes." in shown
    assert len(shown) < 80_000


def test_a_long_binary_body_is_cut_earlier() -> None:
    assert "The first 4,096 bytes of 100,000 bytes." in body.content(b"\x00" * 100_000)


def test_an_empty_body_has_no_bytes() -> None:
    assert "0 bytes" in body.content(b"")


def test_headers_keep_their_order() -> None:
    table = body.headers_table('{"z":"1","a":"<2>"}')
    assert table.index("z</th>") < table.index("a</th>")
    assert "&lt;2&gt;" in table


@pytest.mark.parametrize("text", ["{", '{"a":1}', "[]"])
def test_damaged_headers_are_shown_as_they_are(text: str) -> None:
    assert body.headers_table(text).startswith("<pre")


def test_an_attachment_is_never_run_by_a_browser() -> None:
    response = body.attachment("id", b"<script>")
    assert response.content == b"<script>"
    assert response["Content-Type"] == "application/octet-stream"
    assert response["Content-Disposition"] == 'attachment; filename="id.body"'
    assert response["X-Content-Type-Options"] == "nosniff"
