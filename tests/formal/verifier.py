"""Spin: make the verifier of a model, run it, read what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent.parent / "formal"
MEGABYTES = 1000
SECONDS = 100


@dataclass(frozen=True)
class Verdict:
    """What a complete search of a model's states has found.

    ``unreached`` are the holder's statements that no state ever came to; ``failed`` is the
    assertion that broke at the end of the trail.
    """

    errors: int
    states: int
    complete: bool
    unreached: list[str]
    failed: str


def verify(model: str, folder: Path, *defines: str) -> Verdict:
    """Search all states of ``formal/<model>.pml`` with some of its names defined."""
    shutil.copy(MODELS / f"{model}.pml", folder)
    names = [f"-D{define}" for define in defines]
    _run(folder, "spin", "-a", *names, f"{model}.pml")
    options = ["-O2", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEGABYTES}"]
    _run(folder, "gcc", "-w", *options, "-o", "pan", "pan.c")
    said = _run(folder, "./pan", "-m100000")
    trail = (folder / f"{model}.pml.trail").exists()
    return Verdict(
        errors=_number(r"errors: (\d+)", said),
        states=_number(r"(\d+) states, stored", said),
        complete="Search not completed" not in said and "max search depth" not in said,
        unreached=_unreached(said),
        failed=_failed(_run(folder, "spin", "-t", *names, f"{model}.pml")) if trail else "",
    )


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _number(pattern: str, said: str) -> int:
    found = re.search(pattern, said)
    if found is None:
        raise RuntimeError(f"the verifier did not end as it should:\n{said}")
    return int(found[1])


def _unreached(said: str) -> list[str]:
    """Only of a complete search does this tell anything."""
    part = said.partition("unreached in proctype Holder")[2].partition("unreached in")[0]
    return [line.strip() for line in part.splitlines() if ".pml:" in line]


def _failed(said: str) -> str:
    found = re.search(r"text of failed assertion: assert\((.*)\)", said)
    return found[1] if found else ""
