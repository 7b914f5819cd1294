"""What the system has to provide: found, installed with apt by root, or named with the line."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

APT_INSTALL = ["apt-get", "install", "--yes", "--no-install-recommends"]


@dataclass(frozen=True)
class Part:
    """Something of the system, and the Debian packages that bring it."""

    what: str
    packages: tuple[str, ...]
    present: Callable[[], bool]


PYTHON = "python{}.{}".format(*sys.version_info[:2])

VENV = Part(
    "Python's venv module",
    (f"{PYTHON}-venv",),
    lambda: importlib.util.find_spec("ensurepip") is not None,
)


def has_python_headers() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").exists()


def has_mysql_headers() -> bool:
    if shutil.which("pkg-config") is None:
        return False
    names = ("mysqlclient", "mariadb", "libmariadb")
    return any(subprocess.call(["pkg-config", "--exists", name]) == 0 for name in names)


# mysqlclient comes as source only; pyodbc's wheel leaves the driver manager to the system.
DRIVERS = (
    Part("a C compiler", ("gcc", "libc6-dev"), lambda: shutil.which("cc") is not None),
    Part("pkg-config", ("pkg-config",), lambda: shutil.which("pkg-config") is not None),
    Part("Python's headers", (f"{PYTHON}-dev",), has_python_headers),
    Part("MariaDB's client library", ("libmariadb-dev",), has_mysql_headers),
    Part("the ODBC driver manager", ("libodbc2",), lambda: find_library("odbc") is not None),
)


def provide(parts: Iterable[Part]) -> None:
    """Install what is missing, or end with the exact line to run."""
    missing = [part for part in parts if not part.present()]
    if not missing:
        return
    packages = sorted({package for part in missing for package in part.packages})
    what = ", ".join(part.what for part in missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        line = " ".join([*APT_INSTALL, *packages])
        raise SystemExit(f"Missing on this machine: {what}. As root, run:\n  {line}")
    print(f"Installing {what} with apt: {' '.join(packages)}", flush=True)
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], [*APT_INSTALL, "-qq", *packages]):
        subprocess.run(command, env=quiet, check=True, stdout=subprocess.DEVNULL)
