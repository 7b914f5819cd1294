"""Aliases and servers that the tests of the locks need."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest_django

    from django_outbox_lock.backends.locks.base import BaseLockBackend


class AddAlias(Protocol):
    """Adds a database alias like "default", with some keys changed; it is gone after the test."""

    def __call__(self, alias: str, **changes: Any) -> str: ...


class Make(Protocol):
    """Makes a lock backend, which is closed after the test."""

    def __call__(
        self, cls: type[BaseLockBackend], alias: str = ..., **options: Any
    ) -> BaseLockBackend: ...


@pytest.fixture
def add_alias(
    transactional_db: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[AddAlias]:
    # Django lets a test use the aliases only that were there when it began.
    with django_db_blocker.unblock(), ExitStack() as stack:

        def remove(alias: str) -> None:
            if pool := getattr(connections[alias], "pool", None):
                connections[alias].close()
                pool.close()
            connections[alias].close()
            del connections[alias]
            del connections.settings[alias]

        def add(alias: str, **changes: Any) -> str:
            settings = {**connections["default"].settings_dict, **changes}
            settings["OPTIONS"] = {**settings["OPTIONS"], **changes.get("OPTIONS", {})}
            connections.settings[alias] = settings
            stack.callback(remove, alias)
            return alias

        yield add


@pytest.fixture
def make(transactional_db: None) -> Iterator[Make]:
    with ExitStack() as stack:

        def build(
            cls: type[BaseLockBackend], alias: str = "default", **options: Any
        ) -> BaseLockBackend:
            backend = cls(alias, **{"lease": 30.0, **options})
            stack.callback(backend.close)
            return backend

        yield build
