"""PgBouncer as packaged by Debian or Ubuntu, before a PostgreSQL of ours."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.servers import spawn
from tests.servers.database import DATABASE, DatabaseServer
from tests.servers.postgresql import PostgreSQL, run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any, Self


class PgBouncer(DatabaseServer):
    """A pooler before ``upstream``, or before a PostgreSQL of its own that lives as long.

    ``kill`` and ``pause`` are of the pooler alone. ``settings`` are lines of its section
    ``[pgbouncer]``. Before version 1.21 it does not know prepared statements in transaction mode.
    """

    name = "pgbouncer"
    title = "PgBouncer"
    apt = ("pgbouncer", *PostgreSQL.apt)
    user = "postgres"
    scheme = "postgres"
    superuser = "postgres"
    stop_timeout = 2.0  # it may wait for its clients; there is nothing to lose

    def __init__(
        self,
        upstream: PostgreSQL | None = None,
        *,
        pool_mode: str = "transaction",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.upstream = upstream or PostgreSQL()
        self._owns_upstream = upstream is None
        self.settings = {"pool_mode": pool_mode, **(settings or {})}

    def installed(self) -> bool:
        return self._program is not None and self.upstream.installed()

    def start(self) -> Self:
        if self._owns_upstream and self.installed():
            self.upstream.start()
        return super().start()

    def stop(self) -> None:
        super().stop()
        if self._owns_upstream:
            self.upstream.stop()

    def close(self) -> None:
        super().close()
        if self._owns_upstream:
            self.upstream.close()

    def prepare(self) -> None:
        self._write("users", f'"{self.superuser}" ""\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self.directory / "users"),
            "admin_users": self.superuser,
            "ignore_startup_parameters": "extra_float_digits,options",
            **self.settings,
        }
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        databases = f"* = host=127.0.0.1 port={self.upstream.port}\n"
        self._write("pgbouncer.ini", f"[databases]\n{databases}[pgbouncer]\n{lines}")

    def command(self) -> list[str]:
        return [str(self._program), str(self._file("pgbouncer.ini"))]

    def ping(self) -> None:
        self.execute("SELECT 1")

    @property
    def version(self) -> str:
        ((version,),) = run(self.port, "pgbouncer", "SHOW VERSION")
        return str(version).removeprefix("PgBouncer ")

    def execute(self, statement: str, database: str = DATABASE) -> list[tuple[Any, ...]]:
        return run(self.port, database, statement)

    @property
    def _program(self) -> str | None:
        return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

    def _file(self, name: str) -> Path:
        return self.directory / name

    def _write(self, name: str, text: str) -> None:
        self._file(name).write_text(text)
        spawn.give(self._file(name), self.account)
