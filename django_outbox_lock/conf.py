"""``OUTBOX_LOCK``, read and checked. No other module reads Django's settings."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver

from django_outbox_lock.exceptions import InvalidAlias, InvalidSettings

SETTING = "OUTBOX_LOCK"
DEFAULT_ALIAS = "default"
DEFAULT_PUBLISHER = "default"
DEFAULT_ARCHIVE = "django_outbox_lock.backends.archives.table.TableArchive"
CONSOLE_PUBLISHER = "django_outbox_lock.backends.publishers.console.ConsolePublisher"
_SECTIONS = frozenset(
    {"LOCK", "PUBLISHERS", "ROUTES", "TOPICS", "ARCHIVE", "SWEEPER", "ARCHIVER", "PUBLISH"}
)

Options = Mapping[str, Any]
R = TypeVar("R")
_forgetters: list[Callable[[], None]] = []


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """A ``BACKEND`` with its ``OPTIONS``; ``path`` is where it stands, for messages."""

    path: str
    backend: str | None
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeywordSettings:
    """Keyword arguments of a class of ours; ``path`` is where they stand, for messages."""

    path: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """Everything that the settings say of the outbox on one database alias.

    ``routes`` is None when absent (everything goes to the publisher ``default``).
    """

    alias: str
    lock: BackendSettings
    publishers: Mapping[str, BackendSettings]
    routes: Mapping[str, str] | None
    topics: Mapping[str, KeywordSettings]
    archive: BackendSettings
    sweeper: KeywordSettings
    archiver: KeywordSettings
    publish: KeywordSettings


def outbox_aliases() -> tuple[str, ...]:
    """The database aliases that have an outbox."""
    return tuple(_read())


def outbox_settings(alias: str) -> OutboxSettings:
    """The settings of the outbox on ``alias``.

    Raises ``InvalidAlias`` when that alias has none, ``InvalidSettings`` when they are wrong.
    """
    outboxes = _read()
    if alias not in outboxes:
        raise InvalidAlias(
            f"The database alias {alias!r} has no outbox: {SETTING} has {', '.join(outboxes)}."
        )
    return outboxes[alias]


def given() -> Mapping[str, Any]:
    """``OUTBOX_LOCK`` as the project wrote it, unchecked; what an absent one stands for."""
    return getattr(settings, SETTING, None) or {DEFAULT_ALIAS: {}}


def debug() -> bool:
    """Django's ``DEBUG``."""
    return bool(settings.DEBUG)


def cached(function: Callable[[str], R]) -> Callable[[str], R]:
    """Remember what ``function`` makes of an alias until the settings change, as in a test."""
    remembered = functools.cache(function)
    _forgetters.append(remembered.cache_clear)
    return remembered


@functools.cache
def _read() -> dict[str, OutboxSettings]:
    outboxes = _mapping(getattr(settings, SETTING, {}), SETTING) or {DEFAULT_ALIAS: {}}
    for alias in outboxes:
        if alias not in settings.DATABASES and alias in _SECTIONS:
            raise InvalidSettings(
                f"{SETTING}[{alias!r}]: the level of the database alias is missing; "
                f"it belongs into {SETTING}[{DEFAULT_ALIAS!r}][{alias!r}]."
            )
        if alias not in settings.DATABASES:
            raise InvalidSettings(f"{SETTING}[{alias!r}]: DATABASES has no alias {alias!r}.")
    return {alias: _outbox(alias, section) for alias, section in outboxes.items()}


@receiver(setting_changed, dispatch_uid="django_outbox_lock.conf")
def _forget(*, setting: str, **_: object) -> None:
    if setting in {SETTING, "DATABASES"}:
        _read.cache_clear()
        for forget in _forgetters:
            forget()


def _outbox(alias: str, raw: object) -> OutboxSettings:
    path = f"{SETTING}[{alias!r}]"
    section = _known(raw, path, _SECTIONS)
    get = section.get
    publishers = _mapping(get("PUBLISHERS", {}), f"{path}['PUBLISHERS']")
    topics = _mapping(get("TOPICS", {}), f"{path}['TOPICS']")
    return OutboxSettings(
        alias=alias,
        lock=_backend(get("LOCK", {}), f"{path}['LOCK']"),
        publishers={
            name: _backend(value, f"{path}['PUBLISHERS'][{name!r}]", required=True)
            for name, value in publishers.items()
        },
        routes=_routes(get("ROUTES"), f"{path}['ROUTES']", publishers),
        topics={
            pattern: _keywords(value, f"{path}['TOPICS'][{pattern!r}]")
            for pattern, value in topics.items()
        },
        archive=_backend(
            get("ARCHIVE", {"BACKEND": DEFAULT_ARCHIVE}), f"{path}['ARCHIVE']", required=True
        ),
        sweeper=_keywords(get("SWEEPER", {}), f"{path}['SWEEPER']"),
        archiver=_keywords(get("ARCHIVER", {}), f"{path}['ARCHIVER']"),
        publish=_keywords(get("PUBLISH", {}), f"{path}['PUBLISH']"),
    )


def _backend(raw: object, path: str, *, required: bool = False) -> BackendSettings:
    section = _known(raw, path, {"BACKEND", "OPTIONS"})
    backend = section.get("BACKEND")
    if backend is not None and not isinstance(backend, str):
        raise InvalidSettings(f"{path}['BACKEND'] must be a dotted path, not {backend!r}.")
    if backend is None and required:
        raise InvalidSettings(f"{path}['BACKEND'] is missing.")
    return BackendSettings(
        path, backend, _mapping(section.get("OPTIONS", {}), f"{path}['OPTIONS']")
    )


def _routes(raw: object, path: str, publishers: Options) -> Mapping[str, str] | None:
    if raw is None:
        if publishers and DEFAULT_PUBLISHER not in publishers:
            raise InvalidSettings(f"{path} is missing: PUBLISHERS has no {DEFAULT_PUBLISHER!r}.")
        return None
    routes = _mapping(raw, path)
    for pattern, name in routes.items():
        if not isinstance(name, str) or name not in publishers:
            raise InvalidSettings(f"{path}[{pattern!r}]: PUBLISHERS has no {name!r}.")
    return routes


def _keywords(raw: object, path: str) -> KeywordSettings:
    return KeywordSettings(path, _mapping(raw, path))


def _known(raw: object, path: str, known: frozenset[str] | set[str]) -> Options:
    section = _mapping(raw, path)
    for key in section:
        if key not in known:
            near = difflib.get_close_matches(key.upper(), known, n=1)
            hint = (
                f" Did you mean {near[0]!r}?" if near else f" Known are {', '.join(sorted(known))}."
            )
            raise InvalidSettings(f"{path}[{key!r}] is not known.{hint}")
    return section


def _mapping(raw: object, path: str) -> Options:
    if not isinstance(raw, Mapping):
        raise InvalidSettings(f"{path} must be a dict, not {type(raw).__name__}.")
    for key in raw:
        if not isinstance(key, str):
            raise InvalidSettings(f"{path} has a key that is no str: {key!r}.")
    return raw
