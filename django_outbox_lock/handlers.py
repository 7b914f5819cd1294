"""Settings become instances, by dotted path; a wrong option is named with its full path."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from django.utils.module_loading import import_string

from django_outbox_lock import conf
from django_outbox_lock.checked import count
from django_outbox_lock.exceptions import InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_outbox_lock.conf import Options

T = TypeVar("T")

# MariaDB takes statements of 16 MB by default, and escaping may double a body.
MAX_BYTES = 5 * 1024 * 1024


def load(path: str, dotted: str, base: type[T]) -> type[T]:
    """The class that ``dotted`` names, a whole ``base``; raises ``InvalidSettings``.

    ``path`` is the place in the settings. A missing library surfaces as the room's own sentence.
    """
    try:
        loaded = import_string(dotted)
    except ImportError as error:
        raise InvalidSettings(f"{path}['BACKEND']: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise InvalidSettings(f"{path}['BACKEND']: {dotted} is no {base.__name__}.")
    if missing := ", ".join(sorted(getattr(loaded, "__abstractmethods__", ()))):
        raise InvalidSettings(f"{path}['BACKEND']: {dotted} does not define {missing}.")
    return loaded


def construct(cls: type[T], options: Options, path: str, *given: Any) -> T:
    """``cls(*given, **options)``; ``path`` is where the options stand in the settings.

    Raises ``InvalidSettings`` for an unknown option (with the nearest known one) and for a value
    that the class refuses with ``TypeError`` or ``ValueError``.
    """
    known = option_names(cls, len(given))
    for name in options:
        if name not in known:
            why = misspelt(name, known) or f" is not known. Known are {', '.join(known)}."
            raise InvalidSettings(f"{path}[{name!r}]{why}")
    try:
        return cls(*given, **options)
    except (TypeError, ValueError) as error:
        raise InvalidSettings(f"{path}: {error}") from error


def misspelt(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest known name; empty if none is near."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f" is not known. Did you mean {near[0]!r}?" if near else ""


def option_names(cls: type, given: int = 0) -> list[str]:
    """The keyword arguments of a class and, where it takes ``**kwargs``, of its bases.

    The first ``given`` arguments after ``self`` are not the settings' to give.
    """
    names: list[str] = []
    for owner in cls.__mro__:
        if "__init__" not in vars(owner):
            continue
        parameters = list(inspect.signature(vars(owner)["__init__"]).parameters.values())
        by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        names += [n for n in by_place[given + 1 :] + by_name if n not in names]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names


class PublishOptions:
    """``OUTBOX_LOCK[alias]["PUBLISH"]``: ``max_bytes`` is the largest body that is accepted."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = count("max_bytes", max_bytes)


@conf.cached
def publish_options(alias: str) -> PublishOptions:
    """The options of the outbox on ``alias``. Raises ``InvalidSettings``."""
    given = conf.outbox_settings(alias).publish
    return construct(PublishOptions, given.options, given.path)
