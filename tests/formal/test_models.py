"""The models of formal/: the design holds in every state, and each broken variant does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.formal.verifier import verify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.server("spin")


@pytest.mark.parametrize(
    ("model", "bounds"),
    [
        ("lease", ("HOLDERS=2", "ROUNDS=2", "LEASE=2")),
        ("lease", ("HOLDERS=3", "ROUNDS=1", "LEASE=1")),
        ("store", ("HOLDERS=2", "ROUNDS=2", "LEASE=2")),
        ("store", ("HOLDERS=3", "ROUNDS=1", "LEASE=1")),
    ],
)
def test_the_design_holds(
    model: str, bounds: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """K10, K30: every state is searched, and every step of a holder is taken in some of them."""
    verdict = verify(model, tmp_path, *bounds)
    with capsys.disabled():
        print(f" [{verdict.states:,} states]", end="")
    assert verdict.failed == ""
    assert verdict.errors == 0
    assert verdict.complete
    assert verdict.unreached == []
    assert verdict.states > 100_000


@pytest.mark.parametrize(
    ("model", "variant", "breaks"),
    [
        ("lease", "PLAIN_READ", "mine==token"),
        ("lease", "BLIND_RELEASE", "<=1"),
        ("lease", "LATE_DEADLINE", "<=1"),
        ("store", "BLIND_BUMP", "lessee=="),
        ("store", "BLIND_RELEASE", "<=1"),
        ("store", "LATE_BELIEF", "<=1"),
    ],
)
def test_a_broken_variant_is_caught(model: str, variant: str, breaks: str, tmp_path: Path) -> None:
    """E20 among them: a fence that only reads lets a stale holder mark."""
    verdict = verify(model, tmp_path, variant)
    assert verdict.errors == 1
    assert breaks in verdict.failed
