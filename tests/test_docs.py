"""The documentation says what is there, and its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests import servers

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<path>[\w/]+\.py)\n")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [m["text"] for m in _BLOCK.finditer(text) if m["language"] == language]


def files(page: Path) -> dict[str, str]:
    """The blocks that name their file in the first line."""
    return {m["path"]: text for text in blocks(page, "python") if (m := _FILE.match(text))}


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What the command says; fails unless it ends well."""
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")
    base = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**base, "PYTHONWARNINGS": "error", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{command} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def keeps_its_contract(folder: Path, example: str, database_url: str) -> None:
    """Run the test module that stands beside the example, in a process of its own."""
    written = files(DOCS / "writing-a-backend.md")
    for name in (f"{example}.py", f"test_{example}.py"):
        (folder / name).write_text(written[name], encoding="utf-8")
    said = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{example}.py"],
        folder,
        PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]),
        DJANGO_SETTINGS_MODULE="testproject.settings",
        DATABASE_URL=database_url,
    )
    assert re.search(r"\d+ passed", said)


@pytest.mark.parametrize("example", ["spool", "folderarchive"])
def test_the_example_keeps_its_contract(tmp_path: Path, example: str) -> None:
    keeps_its_contract(tmp_path, example, f"sqlite:///{tmp_path}/default.sqlite3")


@pytest.mark.server("postgresql")
@pytest.mark.timeout(300)
def test_the_example_of_a_lock_keeps_its_contract(tmp_path: Path, server: servers.Server) -> None:
    """On a database that lets others write while the caller's transaction is open."""
    keeps_its_contract(tmp_path, "folderlock", f"{server.url}_folderlock")
