"""A system that does not fork, as Windows, which cannot run here: its names are taken away."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Manage = Callable[..., subprocess.CompletedProcess[str]]

# What others need of these names they take when they are loaded.
WITHOUT = """
import asyncio, multiprocessing, os, signal, subprocess, sys, tempfile
for name in ("fork", "register_at_fork", "killpg", "getpgid", "waitpid"):
    delattr(os, name)
for name in ("HUP", "QUIT", "USR1", "USR2", "TSTP", "STOP", "CONT", "KILL", "ALRM"):
    delattr(signal, f"SIG{name}")
del signal.pthread_sigmask
"""
MANAGE = f"""{WITHOUT}
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""
WORK = "from django_outbox_lock import lock\nwith lock('nightly') as handle: print(handle)"


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", MANAGE, *arguments],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3"},
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert run("migrate", "-v0").returncode == 0
    return run


def test_locks_and_engines_work(manage: Manage) -> None:
    done = manage("shell", "--no-imports", "-c", WORK)
    assert "token 1 held" in done.stdout, done.stderr
    done = manage("outbox", "locks")
    assert "nightly" in done.stdout, done.stderr
    done = manage("runarchiver", "--help")
    assert done.returncode == 0, done.stderr


def test_runlocked_says_what_it_lacks(manage: Manage) -> None:
    done = manage("runlocked", "nightly", "--", "check")
    assert done.returncode == 1
    assert done.stderr.startswith("CommandError: runlocked needs process groups and signals")
