"""The short version of the chaos run for stores outside the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.chaos.conftest import Chaos


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("mongodb", marks=pytest.mark.server("sqlite", "secantusdb")),
        pytest.param("dynamodb", marks=pytest.mark.server("sqlite", "dynalite")),
        pytest.param("firestore", marks=pytest.mark.server("sqlite", "firestore")),
    ],
)
def test_the_promises_survive(chaos: Chaos, backend: str) -> None:
    """At least 300 acquisitions, and each kind of fault at least once."""
    done = chaos(backend, 300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken promises: 0" in done.stdout
