"""The body of a message as people can read it: JSON, text or a hex dump; never changed by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext

from django_outbox_lock.admin import jsontext, shown
from django_outbox_lock.codec import decode_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

PERMISSION = "view_message_body"
SHOWN_BYTES = 64 * 1024
_DUMPED_BYTES = 4 * 1024
_ROW = 16
_PRINTED = range(0x20, 0x7F)


def show(body: bytes, download: str) -> str:
    """The body, or its beginning, with a link to the whole."""
    link = (download, gettext("Download as it is stored"))
    return format_html(
        '{}<p class="outbox-extent"><a href="{}" download>{}</a></p>', content(body), *link
    )


def content(body: bytes) -> str:
    """The body, or its beginning, laid out for reading, and how long it is."""
    text = _text(body[:SHOWN_BYTES], cut=len(body) > SHOWN_BYTES)
    if text is None:
        limit, readable = _DUMPED_BYTES, dump(body[:_DUMPED_BYTES])
    else:
        limit, readable = SHOWN_BYTES, _readable(text, cut=len(body) > SHOWN_BYTES)
    return format_html(
        '<pre class="outbox-body" dir="ltr" tabindex="0">{}</pre><p class="outbox-extent">{}</p>',
        readable,
        _extent(len(body), limit),
    )


def dump(data: bytes) -> str:
    """Offset, bytes and printable characters, sixteen in a line."""
    return "\n".join(_dump_lines(data))


def headers_table(text: str) -> str:
    """Headers in their order; a damaged text is shown as it is."""
    try:
        headers = decode_headers(text)
    except ValueError:
        return format_html('<pre class="outbox-body" dir="ltr">{}</pre>', text)
    if not headers:
        return shown.quiet(gettext("none"))
    rows = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td></tr>', headers.items())
    return format_html('<table class="outbox-headers"><tbody>{}</tbody></table>', rows)


def hidden() -> str:
    """What stands in place of a body for those who may not see it."""
    return shown.quiet(gettext("hidden: it takes the permission “Can see the bodies of messages”"))


def attachment(name: str, body: bytes) -> HttpResponse:
    """The bytes as a file, whatever they are: never a page that a browser would run."""
    response = HttpResponse(body, content_type="application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="{name}.body"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _text(body: bytes, *, cut: bool) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(body) - 3:
            return None
        text = body[: error.start].decode()  # the cut went through a character
    return None if any(ord(char) < 32 and char not in "\t\n\r" for char in text) else text


def _readable(text: str, *, cut: bool) -> str:
    as_json = text.lstrip()[:1] in {"{", "["} if cut else jsontext.is_json(text)
    return jsontext.laid_out(text) if as_json else text


def _extent(size: int, shown_bytes: int) -> str:
    names: dict[str, Any] = {"size": shown.size(size), "shown": shown.size(shown_bytes)}
    if size <= shown_bytes:
        return shown.size(size)
    return gettext("The first %(shown)s of %(size)s.") % names


def _dump_lines(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _ROW):
        row = data[start : start + _ROW]
        printed = "".join(chr(byte) if byte in _PRINTED else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<{_ROW * 3 - 1}}  {printed}"
