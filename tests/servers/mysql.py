"""Oracle's MySQL. No proof for MariaDB: their user locks differ.

Run from a sysroot (see ``tests.servers.sysroot``), unless the system's own mysqld is MySQL: the
packages of MySQL and MariaDB exclude each other. Debian: version 9 from the rolling suite, which
may change or vanish. Ubuntu: version 8.0 of the release itself; that way is untested.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from tests.servers import origin, sysroot
from tests.servers.mysqld import CREATE_DATABASE, MysqldServer

if TYPE_CHECKING:
    from pathlib import Path


class MySQL(MysqldServer):
    name = "mysql"
    title = "MySQL"
    apt = ()

    def installed(self) -> bool:
        return self.missing() is None

    def missing(self) -> str | None:
        """Fetches it the first time (70 MB, kept in the cache); what hinders that is the answer."""
        return _found()[1]

    def program(self) -> list[str]:
        return _found()[0]

    def initialization(self, data: Path, script: Path) -> list[str]:
        return [
            *self.program(),
            "--initialize-insecure",
            f"--datadir={data}",
            f"--init-file={script}",
            "--innodb-redo-log-capacity=32M",
        ]

    def script(self) -> str:
        # Without name resolution, root@localhost is not the root that comes over TCP.
        return (
            f"{CREATE_DATABASE}CREATE USER root@'127.0.0.1' IDENTIFIED BY '';\n"
            "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
        )

    def options(self) -> dict[str, str]:
        return {
            "innodb-redo-log-capacity": "32M",
            "mysqlx": "OFF",
            "secure-file-priv": "",
            "skip-log-bin": "ON",
        }


@functools.cache
def _found() -> tuple[list[str], str | None]:
    """The command of mysqld, or none and the reason, in one sentence."""
    if (system := _system()) is not None:
        return system, None
    source = origin.of_mysql()
    if source is None or not source.sources:
        return [], "MySQL is not installed, and apt has no source of this distribution to ask."
    try:
        root = sysroot.unpacked(source)
    except sysroot.SysrootError as error:
        return [], f"{source.package} could not be fetched from the suite {source.suite}: {error}."
    share = root / "usr" / "share" / "mysql"
    return [
        *sysroot.program(root, "usr/sbin/mysqld"),
        "--no-defaults",
        f"--basedir={root / 'usr'}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
        f"--plugin-dir={root / 'usr' / 'lib' / 'mysql' / 'plugin'}",
    ], None


def _system() -> list[str] | None:
    """The system's own mysqld, unless that is another name of mariadbd."""
    path = shutil.which("mysqld") or shutil.which("mysqld", path="/usr/sbin:/sbin")
    if path is None:
        return None
    argv = [path, "--no-defaults"]
    done = subprocess.run(
        [*argv, "--version"], check=False, capture_output=True, text=True, timeout=30
    )
    return None if re.search("mariadb", done.stdout, re.IGNORECASE) else argv
