"""A migrated test project on a private server, and timing."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import django
from django.conf import settings
from django.core.management import call_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.servers import Server


def set_up(url: str, apps: Iterable[str] = ()) -> None:
    """Point the test project, with these apps too, at the database and migrate it; once."""
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "DATABASE_URL": url,
        "LOG_LEVEL": "ERROR",
    }
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, *apps]
    django.setup()
    call_command("migrate", verbosity=0)


@contextmanager
def database_url(server: Server | None) -> Iterator[str]:
    """The URL of the started server, or of a new SQLite file."""
    if server is None:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'bench.sqlite3'}"
        return
    with server:
        yield server.url


@contextmanager
def started(server: Server) -> Iterator[None]:
    """The server runs inside, whether it was started already or not."""
    if server.running:
        yield
        return
    with server:
        yield


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(values: list[float]) -> float:
    """The middle one; the others say how noisy the machine was."""
    return statistics.median(values)
