"""A Debian package and all that it needs, unpacked beside the system instead of installed.

This is how Oracle's MySQL comes to a machine whose distribution has MariaDB in its place: nothing
is installed, no package of the system changes, and root is not needed. Programs in the sysroot run
by its own dynamic loader, with its own libraries.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from tests.servers import cache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.servers.origin import Origin

_DOWNLOAD_TIMEOUT: Final = 600.0
# Not needed to run a server, and dear in space.
_UNWANTED: Final = ("perl", "debconf", "adduser", "tzdata", "sysvinit")
_DOCUMENTS: Final = ("doc", "man", "locale", "info")


class SysrootError(RuntimeError):
    """The package could not be fetched or unpacked; the message is the tool's last complaint."""


def unpacked(origin: Origin) -> Path:
    """The sysroot of ``origin``, fetched on the first call, then from the cache."""
    recipe = f"{origin.package} {origin.suite} {platform.machine()}"
    return cache.made_once("sysroot", recipe, lambda directory: _build(origin, directory))


def program(sysroot: Path, path: str) -> list[str]:
    """The command that runs ``path`` of the sysroot by its own loader and libraries."""
    libraries = {file.parent for file in sysroot.rglob("libc.so.6")}
    libraries |= {sysroot / "usr" / "lib" / folder.name for folder in libraries}
    loader = min(sysroot.rglob("ld-linux*.so.*"))
    search = ":".join(sorted(str(folder) for folder in libraries))
    return [str(loader), "--library-path", search, str(sysroot / path)]


def _build(origin: Origin, directory: Path) -> None:
    work = directory / "apt"
    options = _private_apt(work, origin)
    # Of several sources, some may not have the suite: only the download decides.
    warnings = _complaints(["apt-get", *options, "update"])
    get = ["apt-get", *options, "--download-only", "--yes", "install", origin.package]
    if errors := _complaints(get):
        raise SysrootError(warnings or errors)
    for archive in sorted((work / "cache" / "archives").glob("*.deb")):
        if not archive.name.startswith(_UNWANTED):
            _extract(archive, directory)
    for folder in (work, *(directory / "usr" / "share" / name for name in _DOCUMENTS)):
        shutil.rmtree(folder, ignore_errors=True)


def _private_apt(work: Path, origin: Origin) -> list[str]:
    """Options that make apt-get forget the system's state, sources and installed packages."""
    for folder in ("cache/archives/partial", "state/lists/partial", "etc/sources", "etc/none"):
        (work / folder).mkdir(parents=True)
    (work / "state" / "status").touch()
    for name, text in origin.sources.items():
        (work / "etc" / "sources" / name).write_text(text)
    settings = {
        "Dir::Cache": work / "cache",
        "Dir::State": work / "state",
        "Dir::State::status": work / "state" / "status",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": work / "etc" / "sources",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": work / "etc" / "none",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
        "APT::Install-Recommends": "false",
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _extract(archive: Path, directory: Path) -> None:
    if errors := _complaints(["dpkg-deb", "--extract", str(archive), str(directory)]):
        raise SysrootError(errors)


def _complaints(argv: Sequence[str]) -> str:
    """Run a tool; what it found wrong, or nothing when it succeeded."""
    try:
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    found = re.findall(r"^(?:[EW]|dpkg-deb): *(.*)$", done.stderr, re.MULTILINE)
    return "; ".join(found) or f"{argv[0]} ended with status {done.returncode}"
