"""The backends of a chaos run: which room, on which servers, with which options."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests import servers
from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server

ROOMS = "django_outbox_lock.backends.locks"


@dataclass(frozen=True)
class Setup:
    """``database`` is that of the outbox; ``store`` is a server whose URL the room needs.

    ``fenced`` False is for the negative controls. ``long`` is the share of turns that last longer
    than a lease.
    """

    backend: str
    database: str
    store: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    fenced: bool = True
    long: float = 0.005


LEASE = f"{ROOMS}.lease.LeaseTableLock"
MYSQL = f"{ROOMS}.mysql.MySQLLock"
REDIS = f"{ROOMS}.redis.RedisLock"
SETUPS = {
    "postgresql": Setup(f"{ROOMS}.postgresql.PostgreSQLLock", "postgresql"),
    "mariadb": Setup(MYSQL, "mariadb"),
    "mysql": Setup(MYSQL, "mysql"),
    "lease-sqlite": Setup(LEASE, "sqlite"),
    "lease-postgresql": Setup(LEASE, "postgresql"),
    "lease-mariadb": Setup(LEASE, "mariadb"),
    "lease-mysql": Setup(LEASE, "mysql"),
    "redis": Setup(REDIS, "sqlite", "redis"),
    "redis-postgresql": Setup(REDIS, "postgresql", "redis"),
    "unfenced": Setup(f"{ROOMS}.postgresql.PostgreSQLLock", "postgresql", fenced=False),
    "always-yes": Setup("tests.chaos.alwaysyes.AlwaysYes", "sqlite", fenced=False, long=0.05),
}
# The negative controls are to fail, so they are no part of a run over everything.
CONTROLS = {"unfenced", "always-yes"}
ALL = [name for name in SETUPS if name not in CONTROLS]


@dataclass
class Stage:
    """A setup whose servers run, each behind a proxy of its own."""

    setup: Setup
    database_url: str
    options: dict[str, Any]
    servers: list[Server]
    proxies: list[Proxy]


@contextmanager
def stage(setup: Setup, lease: float) -> Iterator[Stage]:
    """Start the servers; ``lease`` in seconds."""
    options = {"lease": lease, **setup.options}
    with ExitStack() as stack:
        built = Stage(setup, "", options, [], [])
        if setup.database == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="outbox-chaos-"))
            built.database_url = f"sqlite:///{folder}/outbox.sqlite3"
        else:
            built.database_url = _start(setup.database, built, stack)
        if setup.store is not None:
            options |= {"url": _start(setup.store, built, stack), "namespace": "chaos"}
        yield built


def _start(name: str, built: Stage, stack: ExitStack) -> str:
    server = stack.enter_context(servers.get(name))
    proxy = stack.enter_context(Proxy(server.port))
    built.servers.append(server)
    built.proxies.append(proxy)
    return proxy.through(server.url)
