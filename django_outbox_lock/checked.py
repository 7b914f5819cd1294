"""Checks of values that users give: each error names the argument or the option."""

from __future__ import annotations

from typing import TypeGuard
from urllib.parse import urlsplit

# A hundred years: longer waits are refused, for dates and sockets cannot carry them.
LONGEST = 36_525 * 86_400.0


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, which True and False are not meant to be."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def positive(name: str, value: object, most: float = LONGEST) -> float:
    """``value`` if it is a number above 0, ``most`` at most; raises ``ValueError``."""
    if not is_number(value) or not value > 0:
        raise ValueError(f"{name} must be a number above 0, not {value!r}.")
    return _at_most(name, value, most)


def at_least(name: str, value: object, least: float) -> float:
    """``value`` if it is a number of at least ``least``; raises ``ValueError``."""
    if not is_number(value) or not value >= least:
        raise ValueError(f"{name} must be a number of at least {least:g}, not {value!r}.")
    return _at_most(name, value, LONGEST)


def seconds(name: str, value: object) -> float:
    """``value`` if it is a number of seconds, 0 or more or without end.

    Raises ``TypeError`` for what is no number, ``ValueError`` for one below 0 and for NaN.
    """
    if not is_number(value):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}.")
    if not value >= 0:
        raise ValueError(f"{name} must be 0 seconds or more, not {value!r}.")
    return value


def count(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """``value`` if it is a whole number in the bounds; raises ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, not {value!r}.")
    return value


def _at_most(name: str, value: float, most: float) -> float:
    if value > most:
        raise ValueError(f"{name} must be at most {most:.0f}, not {value!r}.")
    return float(value)


def text(name: str, value: object) -> str:
    """``value`` if it is a text that says something; raises ``ValueError``."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a str that is not empty, not {value!r}.")
    return value


def optional(name: str, value: object) -> str | None:
    """``value`` if it is None or such a text; raises ``ValueError``."""
    return None if value is None else text(name, value)


def url(name: str, value: object) -> str:
    """``value`` if it is the text of a URL; raises ``ValueError``, which shows nothing of it.

    What stands unescaped in a password is taken for the end of the host, and what a parser says of
    the port then is a part of the password.
    """
    given = text(name, value)
    try:
        parts = urlsplit(given)
        readable = "://" in given and "@" not in parts.path + parts.query + parts.fragment
    except ValueError:
        readable = False
    if not readable:
        raise ValueError(
            f"{name} must be a URL, with the special characters of the user and the password "
            "percent-encoded."
        ) from None
    return given


def function(name: str, value: object) -> None:
    """Raise ``TypeError`` unless ``value`` can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {value!r}.")


def flag(name: str, value: object) -> bool:
    """``value`` if it is True or False; raises ``TypeError``."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}.")
    return value
