"""Virtual environments in .dev/venvs/, each made once for the requirements it was made from."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts import _machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
DEV = ROOT / ".dev"
VENVS = DEV / "venvs"


@dataclass(frozen=True)
class Environment:
    """A directory in .dev/venvs/ and what belongs into it."""

    name: str
    requirements: tuple[str, ...]
    interpreter: str = sys.executable
    parts: tuple[_machine.Part, ...] = ()

    def python(self) -> str:
        """The environment's interpreter; installs the environment if it is not there yet."""
        folder = VENVS / self.name
        python = str(folder / "bin" / "python")
        stamp = folder / "made-from.txt"
        made_from = "\n".join([self.interpreter, *self.requirements])
        with _one_at_a_time(folder):
            if not stamp.exists() or stamp.read_text(encoding="utf-8") != made_from:
                self._install(folder, python)
                stamp.write_text(made_from, encoding="utf-8")
        return python

    def _install(self, folder: Path, python: str) -> None:
        _machine.provide([_machine.VENV, *self.parts])
        where = folder.relative_to(ROOT)
        print(f"Installing into {where}: {', '.join(self.requirements)}", flush=True)
        pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([self.interpreter, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([*pip, *self.requirements], check=True, cwd=ROOT)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Two commands in two terminals: the second one waits until the environment is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def requirements(*groups: str, extras: Iterable[str] = ()) -> tuple[str, ...]:
    """What the project needs, with these extras and dependency groups of pyproject.toml."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project: dict[str, Any] = pyproject["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    for group in groups:
        found += pyproject["dependency-groups"][group]
    return tuple(found)


def demo() -> Environment:
    """Pure Python: no driver, no compiler."""
    return Environment("demo", requirements("demo"))


def full() -> Environment:
    """Every driver and tool: for the suite, the checks and the documentation."""
    return Environment("full", (*_everything(), "--editable=."), parts=_machine.DRIVERS)


def bench() -> Environment:
    """The same, and the libraries that the benchmarks compare with."""
    needed = (*_everything(), *requirements("bench"), "--editable=.")
    return Environment("bench", tuple(dict.fromkeys(needed)), parts=_machine.DRIVERS)


def _everything() -> tuple[str, ...]:
    drivers = ("postgresql", "mysql", "mssql", "rabbitmq")
    stores = ("redis", "dynamodb", "azure", "mongodb", "firestore")
    return requirements("demo", "test", "lint", "docs", extras=(*drivers, *stores))


def django(version: str, interpreter: str) -> Environment:
    """One release series of Django, for what is checked on each."""
    return Environment(
        f"django-{version}", (*requirements("demo"), f"Django~={version}.0"), interpreter
    )
