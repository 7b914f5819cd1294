"""The backends of a chaos run: which room, on which servers, with which options."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests import servers
from tests.chaos.proxy import Proxy
from tests.servers.firestore import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server

ROOMS = "django_outbox_lock.backends.locks"


@dataclass(frozen=True)
class Setup:
    """``database`` is that of the outbox; ``store`` is a server beside it.

    ``address`` names the room's option for the store and the attribute of the server that has it;
    ``through`` the variable in which the client finds it, where there is no such option.
    ``lease`` is in seconds. ``fenced`` False is for the negative controls. ``long`` is the share of
    turns that last longer than a lease.
    """

    backend: str
    database: str
    store: str | None = None
    address: tuple[str, str] = ("url", "url")
    through: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    lease: float = 1.0
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
    "mongodb": Setup(f"{ROOMS}.mongodb.MongoDBLock", "sqlite", "secantusdb"),
    "dynamodb": Setup(
        f"{ROOMS}.dynamodb.DynamoDBLock",
        "sqlite",
        "dynalite",
        address=("endpoint_url", "url"),
        options={"table": "outbox-locks", "region_name": "eu-central-1"},
    ),
    "azure": Setup(
        f"{ROOMS}.azure.AzureBlobLock",
        "sqlite",
        "azurite",
        address=("connection_string", "connection_string"),
        lease=15.0,
    ),
    "firestore": Setup(
        f"{ROOMS}.firestore.FirestoreLock",
        "sqlite",
        "firestore",
        address=("", "host"),
        through="FIRESTORE_EMULATOR_HOST",
        options={"project": PROJECT},
        lease=3.0,
    ),
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
def stage(setup: Setup) -> Iterator[Stage]:
    """Start the servers."""
    with ExitStack() as stack:
        built = Stage(setup, "", {"lease": setup.lease, **setup.options}, [], [])
        if setup.database == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="outbox-chaos-"))
            built.database_url = f"sqlite:///{folder}/outbox.sqlite3"
        else:
            built.database_url = _start(setup.database, "url", built, stack)
        if setup.store is not None:
            _start_store(setup.store, built, stack)
            built.options["namespace"] = "chaos"
        yield built


def _start_store(name: str, built: Stage, stack: ExitStack) -> None:
    option, attribute = built.setup.address
    address = _start(name, attribute, built, stack)
    if built.setup.through:
        os.environ[built.setup.through] = address
    else:
        built.options[option] = address


def _start(name: str, attribute: str, built: Stage, stack: ExitStack) -> str:
    """Start the server behind a proxy; returns its address through the proxy."""
    server = stack.enter_context(servers.get(name))
    proxy = stack.enter_context(Proxy(server.port))
    built.servers.append(server)
    built.proxies.append(proxy)
    return proxy.through(getattr(server, attribute))
