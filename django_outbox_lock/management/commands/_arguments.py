"""Values of the command line, checked while they are read: a wrong one ends with status 2."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, TypeVar

from django_outbox_lock import checked, codec, keys
from django_outbox_lock.draft import TOPIC_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_VALUE = "it"  # argparse puts the name of the argument before it


def seconds(text: str) -> float:
    """0 or more; ``inf`` for no end."""
    number = float(text)
    return _told(lambda: checked.seconds(_VALUE, number))


def pause(text: str) -> float:
    """Seconds above 0 for which a process can sleep."""
    number = float(text)
    return _told(lambda: checked.positive(_VALUE, number))


def status(text: str) -> int:
    """What a process can end with: the system keeps eight bits of it."""
    number = int(text)
    return _told(lambda: checked.count(_VALUE, number, least=0, most=255))


def resource(text: str) -> str:
    """The name of a lock."""
    return _told(lambda: keys.canonical_resource(text))


def topic(text: str) -> str:
    """What a message's topic may be: a shell hands over bytes that no database takes as text."""
    return _told(lambda: codec.check_text(_VALUE, text, limit=TOPIC_LIMIT))


def _told(check: Callable[[], T]) -> T:
    """With the text of the error, of which argparse shows its own kind only."""
    try:
        return check()
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
