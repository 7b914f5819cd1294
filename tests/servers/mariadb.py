"""MariaDB as packaged by Debian or Ubuntu. No proof for MySQL: their user locks differ."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.servers.mysqld import CREATE_DATABASE, MysqldServer

if TYPE_CHECKING:
    from pathlib import Path


class MariaDB(MysqldServer):
    name = "mariadb"
    title = "MariaDB"
    apt = ("mariadb-server",)

    def installed(self) -> bool:
        return bool(_which("mariadbd") and _which("mariadb-install-db"))

    def program(self) -> list[str]:
        return [_which("mariadbd") or "mariadbd", "--no-defaults"]

    def initialization(self, data: Path, script: Path) -> list[str]:
        return [
            _which("mariadb-install-db") or "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            f"--extra-file={script}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--innodb-log-file-size=16M",
        ]

    def script(self) -> str:
        # The script runs without grant tables: the first line loads them. Without name
        # resolution, root@localhost is not the root that comes over TCP.
        grant = "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
        return f"FLUSH PRIVILEGES;\n{CREATE_DATABASE}{grant}"


def _which(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
