"""The short version of the chaos run, and runs that must find broken promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.chaos.conftest import Chaos


@pytest.mark.parametrize(
    "backend",
    [
        "lease-sqlite",
        pytest.param("postgresql", marks=pytest.mark.server("postgresql")),
        pytest.param("mariadb", marks=pytest.mark.server("mariadb")),
        pytest.param("mysql", marks=pytest.mark.server("mysql")),
        pytest.param("redis", marks=pytest.mark.server("redis")),
    ],
)
def test_the_promises_survive(chaos: Chaos, backend: str) -> None:
    """K16, K30: at least 300 acquisitions, and each kind of fault at least once."""
    done = chaos(backend, 300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken promises: 0" in done.stdout


def test_a_lock_that_everybody_gets_is_found_out(chaos: Chaos) -> None:
    """Its tokens grow as they should; only the order of writes shows it."""
    done = chaos("always-yes", 300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "came after" in done.stdout
