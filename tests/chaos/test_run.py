"""The short version of the chaos run, and runs that must find broken promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ADDRESSES = {"DATABASE_URL", "SECOND_DATABASE_URL", "OUTBOX_TEST_REPORT"}


def chaos(backend: str, acquisitions: int) -> subprocess.CompletedProcess[str]:
    """A run with private servers, which it kills."""
    options = ["--backend", backend, "--acquisitions", str(acquisitions), "--seed", "1"]
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos.run", *options],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in ADDRESSES},
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize(
    "backend",
    [
        "lease-sqlite",
        pytest.param("postgresql", marks=pytest.mark.server("postgresql")),
        pytest.param("mariadb", marks=pytest.mark.server("mariadb")),
        pytest.param("mysql", marks=pytest.mark.server("mysql")),
        pytest.param("redis", marks=pytest.mark.server("redis")),
        pytest.param("mongodb", marks=pytest.mark.server("secantusdb")),
        pytest.param("dynamodb", marks=pytest.mark.server("dynalite")),
        pytest.param("firestore", marks=pytest.mark.server("firestore")),
    ],
)
def test_the_promises_survive(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    """K16, K30: at least 300 acquisitions, and each kind of fault at least once."""
    done = chaos(backend, 300)
    with capsys.disabled():
        print(f"\n{done.stdout}", end="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken promises: 0" in done.stdout


def test_a_lock_that_everybody_gets_is_found_out() -> None:
    """Its tokens grow as they should; only the order of writes shows it."""
    done = chaos("always-yes", 300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "came after" in done.stdout
