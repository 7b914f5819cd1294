"""Directories that are dear to make and the same for every instance: made once, kept, copied."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.spawn import Account, give

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = "django-outbox-lock"


def made_once(
    name: str, recipe: str, build: Callable[[Path], None], *, owner: Account | None = None
) -> Path:
    """The cached directory ``name``, built by ``build(empty directory)`` if it is not there yet.

    ``recipe`` is whatever the content depends on (version, options): another recipe is another
    directory. Several processes may ask at once: one builds, under a lock, and renames its work
    into place; the others wait for it. What ``build`` raises is raised, and nothing is kept.
    """
    target = _root() / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with _locked(target.with_suffix(".lock")):
        if not target.exists():
            _build(target, build, owner)
    return target


def copy(template: Path, target: Path) -> None:
    """Copy a directory with owners and modes to ``target``, which must not exist."""
    argv = ["cp", "-a", "--reflink=auto", str(template), str(target)]
    subprocess.run(argv, check=True, timeout=60)


def _build(target: Path, build: Callable[[Path], None], owner: Account | None) -> None:
    # Under the lock, whatever stands at this name was left by a builder that was killed.
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o755)
    give(unfinished, owner)
    try:
        build(unfinished)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _root() -> Path:
    """The cache directory, or one for this run only where it cannot be written."""
    directory = _preferred() / _NAME
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix=f"{_NAME}-"))
        directory.chmod(0o755)
    return directory


def _preferred() -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Root's servers run as other users, who may not be able to look into root's home.
    reachable = all(path.stat().st_mode & 0o001 for path in given.parents if path.exists())
    return given if reachable or os.geteuid() != 0 else Path("/var/cache")
