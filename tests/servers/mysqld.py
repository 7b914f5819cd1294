"""What MariaDB and MySQL have in common."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers import cache, spawn, wire
from tests.servers.base import ServerError
from tests.servers.database import DATABASE, DatabaseServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CREATE_DATABASE = f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;\n"


class MysqldServer(DatabaseServer):
    """``settings`` are options of the server beyond the defaults, given as ``--name=value``."""

    user = "mysql"
    scheme = "mysql"
    superuser = "root"

    def __init__(self, settings: Mapping[str, str] | None = None, *, clock: bool = False) -> None:
        super().__init__(clock=clock)
        self.settings = dict(settings or {})

    def program(self) -> list[str]:
        """The server's executable, with what must stand before every other option."""
        raise NotImplementedError

    def initialization(self, data: Path, script: Path) -> list[str]:
        """The command that fills ``data`` and runs the SQL ``script`` in it."""
        raise NotImplementedError

    def script(self) -> str:
        """SQL that makes the superuser and the database ``outbox``."""
        raise NotImplementedError

    def options(self) -> dict[str, str]:
        """Options that only this server knows."""
        return {}

    def prepare(self) -> None:
        recipe = f"{self._program_version()} {self.initialization(Path(), Path())} {self.script()}"
        template = cache.made_once(self.name, recipe, self._initialize, owner=self.account)
        cache.copy(template / "data", self.directory / "data")

    def command(self) -> list[str]:
        settings = {
            "datadir": str(self.directory / "data"),
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self.directory / "socket"),
            "pid-file": str(self.directory / "pid"),
            "character-set-server": "utf8mb4",
            "innodb-buffer-pool-size": "32M",
            **self.options(),
            **self.settings,
        }
        return [*self.program(), "--skip-name-resolve", *flags(settings)]

    def ping(self) -> None:
        wire.mysql(self.port)
        if find_spec("MySQLdb"):
            self.execute("SELECT 1")

    @property
    def version(self) -> str:
        return wire.mysql(self.port)

    def wall_clock(self) -> float:
        ((now,),) = self.execute("SELECT UNIX_TIMESTAMP(SYSDATE(6))")
        return float(now)

    def execute(self, statement: str, database: str = DATABASE) -> list[tuple[Any, ...]]:
        import MySQLdb

        connection = MySQLdb.connect(
            host="127.0.0.1",
            port=self.port,
            user=self.superuser,
            database=database,
            connect_timeout=5,
        )
        try:
            connection.autocommit(on=True)
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall())
        finally:
            connection.close()  # type: ignore[no-untyped-call]  # the stubs leave it untyped

    def create_database(self, name: str) -> str:
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self.url_of(name)

    def _initialize(self, directory: Path) -> None:
        script = directory / "script.sql"
        script.write_text(self.script())
        script.chmod(0o644)
        self._run_alone(self.initialization(directory / "data", script), directory)

    def _program_version(self) -> str:
        return self._run_alone([*self.program(), "--version"], Path("/"))

    def _run_alone(self, argv: Sequence[str], directory: Path) -> str:
        done = subprocess.run(
            spawn.unprivileged(argv, self.account),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=directory,
            env=spawn.environment(directory),
            timeout=180,
        )
        if done.returncode:
            raise ServerError(f"{argv[0]} ended with status {done.returncode}:\n{done.stdout}")
        return done.stdout


def flags(settings: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]
