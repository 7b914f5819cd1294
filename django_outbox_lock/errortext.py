"""An exception as a text that any database keeps and any operator may read."""

from __future__ import annotations

import re

LIMIT = 2000
# Up to the last "@": whoever has not encoded a password shall not read the rest of it here.
_PASSWORD_IN_URL = re.compile(r"(://[^\s:/@]*:)\S+@")


def describe(error: BaseException) -> str:
    """The exception's type and message, cleaned."""
    return clean(f"{type(error).__name__}: {error}")


def clean(text: str) -> str:
    """At most 2,000 UTF-16 code units of the text, without the passwords of URLs.

    NUL characters, which PostgreSQL refuses, and halves of surrogate pairs become question marks.
    """
    text = _PASSWORD_IN_URL.sub(r"\1***@", text.replace("\0", "?"))
    encoded = text.encode("utf-8", "replace").decode().encode("utf-16-le")[: 2 * LIMIT]
    return encoded.decode("utf-16-le", "ignore")
