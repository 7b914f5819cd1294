"""An exception as a text that any database keeps and any operator may read."""

from __future__ import annotations

import re
import traceback
from concurrent import futures
from pathlib import Path

from asgiref import sync

LIMIT = 2000
# Characters of a text that are looked at: of a long one full of URLs the search for passwords would
# take minutes, and most of it is cut off in the end.
_READ = 4 * LIMIT
# This package, and what carries the error of an asynchronous handler to it.
_NOBODYS = tuple(str(Path(file).parent) for file in (__file__, sync.__file__, futures.__file__))
# Up to the last "@": whoever has not encoded a password shall not read the rest of it here.
_PASSWORD_IN_URL = re.compile(r"(://[^\s:/@]*:)\S+@")
# At the end of what is looked at; it comes into sight when much before it was a password.
_HALF_A_PASSWORD = re.compile(r"(://[^\s:/@]*:)[^\s/@]+\Z")


def describe(error: BaseException) -> str:
    """The exception's type and message, cleaned; of a group, those of its members, too."""
    return clean(f"{type(error).__name__}: {text_of(error)}{members(error)}")


def members(error: BaseException) -> str:
    """What a group consists of, in brackets; empty for any other error."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    return f" [{'; '.join(describe(member) for member in error.exceptions)}]"


def innermost(error: BaseException) -> BaseException:
    """The only member of a group, as a ``TaskGroup`` raises it; else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def place(error: BaseException) -> str:
    """Where it was raised: the first line of code that is not of this package, and the last one.

    Empty for an error that was never raised. Without it nobody finds ``KeyError: 'number'``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOBODYS)]
    places = [f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in theirs]
    return " ... ".join(dict.fromkeys([*places[:1], *places[-1:]]))


def text_of(value: object) -> str:
    """``str(value)``, whatever it is: a text that cannot be had must not hide what happened."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 (it is the value's own)
        return f"(its text cannot be had: {type(error).__name__})"


def escaped(text: str, length: int = LIMIT) -> str:
    """In ASCII, which every character set has, with escapes for the rest; cut at ``length``."""
    return text.encode("ascii", "backslashreplace").decode()[:length]


def clean(text: str) -> str:
    """At most 2,000 UTF-16 code units of the text, without the passwords of URLs.

    NUL characters, which PostgreSQL refuses, and halves of surrogate pairs become question marks.
    """
    if len(text) > _READ:
        text = _HALF_A_PASSWORD.sub(r"\1***", text[:_READ])
    text = _PASSWORD_IN_URL.sub(r"\1***@", text.replace("\0", "?"))
    encoded = text.encode("utf-8", "replace").decode().encode("utf-16-le")[: 2 * LIMIT]
    return encoded.decode("utf-16-le", "ignore")
