"""PostgreSQL as packaged by Debian or Ubuntu, the newest version that is installed."""

from __future__ import annotations

import functools
import re
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import cache, spawn, wire
from tests.servers.database import DATABASE, DatabaseServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Durability is part of what is tested, so fsync stays on; initdb's own files need not be synced.
_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")


class PostgreSQL(DatabaseServer):
    """``settings`` are configuration parameters beyond the defaults, given as ``-c name=value``."""

    name = "postgresql"
    title = "PostgreSQL"
    apt = ("postgresql",)
    user = "postgres"
    scheme = "postgres"
    superuser = "postgres"
    stop_signal = signal.SIGINT  # SIGTERM would wait for the clients

    def __init__(self, settings: Mapping[str, str] | None = None, *, clock: bool = False) -> None:
        super().__init__(clock=clock)
        self.settings = dict(settings or {})

    def installed(self) -> bool:
        return _binaries() is not None

    def prepare(self) -> None:
        template = cache.made_once(
            self.name, f"{_version()} {_INITDB}", self._initialize, owner=self.account
        )
        cache.copy(template, self.directory / "data")

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
            "max_connections": "200",
            "dynamic_shared_memory_type": "mmap",  # in the data directory, removed with it
            **self.settings,
        }
        options = [part for item in settings.items() for part in ("-c", "=".join(item))]
        data = str(self.directory / "data")
        return [str(_program("postgres")), "-D", data, "-p", str(self.port), *options]

    def end(self) -> None:
        """Stop: what a killed PostgreSQL leaves in shared memory, nobody would ever remove."""
        self.stop()
        left = self.directory / "data" / "postmaster.pid"
        if left.exists():  # it was killed before; the seventh line is the segment's key and id
            segment = left.read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "--shmem-id", segment], check=False, timeout=10)

    def ping(self) -> None:
        wire.postgresql(self.port)
        if find_spec("psycopg"):
            self.execute("SELECT 1")

    @property
    def version(self) -> str:
        return wire.postgresql(self.port)["server_version"]

    def wall_clock(self) -> float:
        ((now,),) = self.execute("SELECT extract(epoch FROM clock_timestamp())")
        return float(now)

    def execute(self, statement: str, database: str = DATABASE) -> list[tuple[Any, ...]]:
        return run(self.port, database, statement)

    def _initialize(self, directory: Path) -> None:
        data = ["-D", str(directory)]
        self._run_alone([str(_program("initdb")), *data, *_INITDB], directory)
        single = [str(_program("postgres")), "--single", *data, "postgres"]
        self._run_alone(single, directory, f"CREATE DATABASE {DATABASE}\n")

    def _run_alone(self, argv: list[str], directory: Path, text: str = "") -> None:
        subprocess.run(
            spawn.unprivileged(argv, self.account),
            check=True,
            capture_output=True,
            cwd=directory,
            env=spawn.environment(directory),
            input=text.encode(),
            timeout=120,
        )


def run(port: int, database: str, statement: str) -> list[tuple[Any, ...]]:
    """Run one statement as the superuser, in autocommit, and return its rows, if it has any."""
    import psycopg

    with psycopg.connect(
        host="127.0.0.1",
        port=port,
        user=PostgreSQL.superuser,
        dbname=database,
        connect_timeout=5,
        autocommit=True,
    ) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@functools.cache
def _binaries() -> Path | None:
    """The directory of initdb and postgres: Debian keeps one per version, off the PATH."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: [int(part) for part in re.findall(r"\d+", path.parts[4])],
    )
    elsewhere = shutil.which("initdb")
    return found[-1].parent if found else Path(elsewhere).parent if elsewhere else None


def _program(name: str) -> Path:
    return (_binaries() or Path()) / name


def _version() -> str:
    argv = [str(_program("postgres")), "--version"]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
