"""The commands of scripts/dev.py, one function each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from scripts import _environments, _suite
from scripts._environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one command of scripts/dev.py; the exit status is the process's."""
    try:
        return COMMANDS[command](list(arguments))
    except subprocess.CalledProcessError as failure:
        print(f"Failed with status {failure.returncode}: {failure.cmd}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def module(python: str, *arguments: str) -> NoReturn:
    """Become `python -m …` in the checkout, so that whoever ends this process ends that."""
    sys.stdout.flush()
    os.chdir(ROOT)
    os.execv(python, [python, "-m", *arguments])  # noqa: S606 (no shell wanted)


def demo(arguments: list[str]) -> int:
    module(_environments.demo().python(), "testproject.demo", *arguments)


def serve(arguments: list[str]) -> int:
    module(_environments.demo().python(), "testproject.serve", *arguments)


def bench(arguments: list[str]) -> int:
    module(_environments.bench().python(), "benchmarks", *arguments)


def chaos(arguments: list[str]) -> int:
    python = _environments.full().python()
    _suite.provide_servers([_suite.CHAOS])
    module(python, "tests.chaos.run", *arguments)


def lint(arguments: list[str]) -> int:
    """Every check, also after one has failed, so that one run shows all there is to mend.

    Arguments go to `ruff check`: `lint --fix`.
    """
    python = _environments.full().python()
    ruff, mypy, floors = (
        str(Path(python).with_name(tool)) for tool in ("ruff", "mypy", "lint-imports")
    )
    checks = {
        "style": [ruff, "check", *arguments],
        "format": [ruff, "format", "--check"],
        "types": [mypy],
        "import floors": [floors],
        "migrations": [python, "manage.py", "makemigrations", "--check", "--dry-run"],
    }
    failed = []
    for name, command in checks.items():
        print(f"== {name}", flush=True)
        if subprocess.call(command, cwd=ROOT):
            failed.append(name)
    print(f"Failed: {', '.join(failed)}" if failed else "All checks passed.")
    return 1 if failed else 0


def docs(arguments: list[str]) -> int:
    python = _environments.full().python()
    options = ["-W", "--keep-going", "-n", "-q", "-b", "html"]
    module(python, "sphinx", *options, *arguments, "docs", ".dev/docs")


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "demo": demo,
    "serve": serve,
    "test": _suite.test,
    "bench": bench,
    "chaos": chaos,
    "lint": lint,
    "docs": docs,
}
