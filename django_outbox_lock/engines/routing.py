"""Which publisher carries a topic, and the publishers themselves."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

from django_outbox_lock import conf, handlers
from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.exceptions import InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_outbox_lock.conf import BackendSettings, KeywordSettings, OutboxSettings

logger = logging.getLogger("django_outbox_lock.engines")

HOLD, SKIP = "hold", "skip"
# Topics whose way is remembered: a project that puts ids into topics has any number of them.
REMEMBERED = 10_000


class Routing:
    """The publishers of an outbox by name, and the way from a topic to one of them.

    Raises ``InvalidSettings`` for wrong settings, and when no publisher is configured outside
    ``DEBUG``.
    """

    def __init__(self, settings: OutboxSettings) -> None:
        self._configured = settings.publishers or _console(settings.alias)
        self._routes = settings.routes
        if self._routes is None and conf.DEFAULT_PUBLISHER not in self._configured:
            raise InvalidSettings(
                f"{conf.SETTING}[{settings.alias!r}]['ROUTES'] is missing, so that everything "
                f"goes to PUBLISHERS[{conf.DEFAULT_PUBLISHER!r}], which is missing, too."
            )
        self._publishers = {name: _make(found) for name, found in self._configured.items()}
        self._known: dict[str, str | None] = {}
        self._carried: set[str] = set()

    def __getitem__(self, name: str) -> BasePublisher:
        return self._publishers[name]

    def name(self, topic: str) -> str | None:
        """Name of the publisher of a topic; None for a topic without a route."""
        if topic not in self._known:
            _make_room(self._known)
            self._known[topic] = self._find(topic)
        return self._known[topic]

    def carried(self, name: str) -> None:
        """Note that the publisher has brought a message to the broker and an answer back."""
        self._carried.add(name)

    def has_carried(self, name: str) -> bool:
        """Whether it has done so since this was last asked."""
        has = name in self._carried
        self._carried.discard(name)
        return has

    def replace(self, name: str) -> None:
        """Put a new instance in the place of one that hangs in a thread of its own."""
        self._publishers[name] = _make(self._configured[name])

    def close(self) -> None:
        """Close all publishers; they open again when they are used again."""
        for name, publisher in self._publishers.items():
            try:
                publisher.close()
            except Exception:  # the others are to be closed as well
                logger.exception("The publisher %r could not be closed.", name)

    def _find(self, topic: str) -> str | None:
        name: str | None = conf.DEFAULT_PUBLISHER
        if self._routes is not None:
            name = first_match(self._routes, topic)
        return name if name is not None and self._handles(name, topic) else None

    def _handles(self, name: str, topic: str) -> bool:
        try:
            return self._publishers[name].handles(topic)
        except Exception:  # the others go on; what it makes of the message it has to say itself
            logger.exception("The publisher %r could not say whether it handles %r.", name, topic)
            return True


class Policies:
    """``TOPICS``: what becomes of the messages behind a dead one. Raises ``InvalidSettings``."""

    def __init__(self, topics: Mapping[str, KeywordSettings]) -> None:
        self._policies = {
            pattern: handlers.construct(Policy, found.options, found.path)
            for pattern, found in topics.items()
        }
        self._known: dict[str, bool] = {}

    def holds(self, topic: str) -> bool:
        """Whether a dead message of the topic holds the later ones of its key back."""
        if topic not in self._known:
            _make_room(self._known)
            policy = first_match(self._policies, topic) or Policy()
            self._known[topic] = policy.dead_head == HOLD
        return self._known[topic]


class Policy:
    """``OUTBOX_LOCK[alias]["TOPICS"][pattern]``: ``dead_head`` is "hold" or "skip"."""

    def __init__(self, *, dead_head: str = HOLD) -> None:
        if dead_head not in {HOLD, SKIP}:
            raise ValueError(f"dead_head must be {HOLD!r} or {SKIP!r}, not {dead_head!r}.")
        self.dead_head = dead_head


def first_match(patterns: Mapping[str, Any], topic: str) -> Any:
    """The value of the first pattern (fnmatch, case matters) that fits; None if none does."""
    return next((value for pattern, value in patterns.items() if fnmatchcase(topic, pattern)), None)


def _make_room(known: dict[str, Any]) -> None:
    if len(known) >= REMEMBERED:
        known.clear()


def _console(alias: str) -> Mapping[str, BackendSettings]:
    path = f"{conf.SETTING}[{alias!r}]['PUBLISHERS']"
    if not conf.debug():
        raise InvalidSettings(
            f"{path} is empty: nothing says where the messages of {alias!r} are to be sent."
        )
    logger.warning("%s is empty: under DEBUG the messages are printed.", path)
    settings = conf.BackendSettings(f"{path}['default']", conf.CONSOLE_PUBLISHER)
    return {conf.DEFAULT_PUBLISHER: settings}


def _make(settings: BackendSettings) -> BasePublisher:
    cls = handlers.load(settings.path, cast("str", settings.backend), BasePublisher)
    return handlers.construct(cls, settings.options, f"{settings.path}['OPTIONS']")
