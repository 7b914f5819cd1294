"""Where a package for a sysroot comes from: the system's own mirror and keyring, another suite.

The system's source entries are read when asked for; no mirror's name is written anywhere.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Debian's stable releases carry MariaDB in MySQL's place; its rolling suite has both.
_MYSQL: Final = {"debian": ("sid", "mysql-server-core"), "ubuntu": (None, "mysql-server-core-8.0")}
_ALIASES: Final = {"stable", "oldstable", "testing", "unstable", "sid"}
_FIELD: Final = re.compile(r"^([\w-]+):[ \t]*(.*)\n", re.MULTILINE)
_OURS: Final = re.compile(r"^(Types|Suites|Components):.*\n", re.MULTILINE)
_LINE: Final = re.compile(r"^deb\s+((?:\[[^]]*\]\s+)?\S+)\s+(\S+)\s+\S", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Origin:
    """A package, the suite that has it, and apt's source files for that suite by file name."""

    package: str
    suite: str
    sources: dict[str, str]


def of_mysql() -> Origin | None:
    """Oracle's MySQL for this distribution (Ubuntu: untested); None for one that is unknown."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    if release["ID"] not in _MYSQL:
        return None
    codename = release.get("VERSION_CODENAME", "sid")
    suite, package = _MYSQL[release["ID"]]
    return Origin(package, suite or codename, _sources(codename, suite or codename))


def retargeted_stanzas(text: str, codename: str, suite: str) -> str:
    """The deb822 stanzas for ``codename``, for the main component of ``suite`` instead."""
    return "\n".join(_stanzas(re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), codename, suite))


def retargeted_lines(text: str, codename: str, suite: str) -> str:
    """The one-line entries for ``codename``, for the main component of ``suite`` instead."""
    found = [match[1] for match in _LINE.finditer(text) if _is_of(match[2], codename)]
    return "".join(f"deb {place} {suite} main\n" for place in found)


def _sources(codename: str, suite: str) -> dict[str, str]:
    retarget: dict[str, Callable[[str, str, str], str]] = {
        ".sources": retargeted_stanzas,
        ".list": retargeted_lines,
    }
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *(folder / "sources.list.d").glob("*")]
    texts = {
        path.name: retarget[path.suffix](path.read_text(), codename, suite)
        for path in files
        if path.suffix in retarget and path.is_file()
    }
    return {name: text for name, text in texts.items() if text}


def _stanzas(text: str, codename: str, suite: str) -> Iterator[str]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = stanza.strip() + "\n"
        fields = dict(_FIELD.findall(lines))
        wanted = "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes") != "no"
        if wanted and _is_of(fields.get("Suites", ""), codename):
            yield f"{_OURS.sub('', lines)}Types: deb\nSuites: {suite}\nComponents: main\n"


def _is_of(suites: str, codename: str) -> bool:
    return not {codename, *_ALIASES}.isdisjoint(suites.split())
