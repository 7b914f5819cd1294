"""`makemigrations --check` on every supported Django for which there is an interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scripts import _environments
from scripts._environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

# Django's release series, and the minor versions of Python 3 that it runs on.
DJANGO = {"5.2": (11, 12, 13, 14), "6.0": (12, 13, 14), "6.1": (12, 13, 14)}
AUTO_FIELDS = ("AutoField", "BigAutoField")


@dataclass
class Checked:
    """What failed, and which series could not be checked, with the reason."""

    failed: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def check() -> Checked:
    checked = Checked()
    for series, minors in DJANGO.items():
        interpreter = next((path for minor in minors for path in interpreters(minor)), None)
        if interpreter is None:
            reason = f"no Python 3.{minors[0]} or newer with its venv module"
            checked.missing[f"Django {series}"] = reason
        elif not check_series(series, interpreter):
            checked.failed.append(f"makemigrations on Django {series}")
    return checked


def check_series(series: str, interpreter: str) -> bool:
    """Whether no migration is missing, whatever the project's DEFAULT_AUTO_FIELD."""
    python = _environments.django(series, interpreter).python()
    print(f"== makemigrations --check on Django {series}", flush=True)
    command = [python, "-W", "error", "manage.py", "makemigrations", "--check", "--dry-run"]
    statuses = [
        subprocess.call(
            command,
            cwd=ROOT,
            env=os.environ | {"DEFAULT_AUTO_FIELD": f"django.db.models.{name}"},
        )
        for name in AUTO_FIELDS
    ]
    return not any(statuses)


def interpreters(minor: int) -> Iterator[str]:
    """Pythons 3.*minor* that start and can make an environment: this one, on PATH, its siblings."""
    name = f"python3.{minor}"
    candidates = [shutil.which(name)]
    if sys.version_info[1] == minor:
        candidates.insert(0, sys.executable)
    # A version manager keeps its interpreters side by side.
    siblings = Path(sys.base_prefix).parent.glob(f"*/bin/{name}")
    candidates += sorted(str(path) for path in siblings)
    for path in candidates:
        if path and starts(path):
            yield path


def starts(path: str) -> bool:
    done = subprocess.run([path, "-c", "import ensurepip"], check=False, capture_output=True)
    return done.returncode == 0
