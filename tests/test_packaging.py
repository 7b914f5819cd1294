"""The wheel: all of the package, nothing of its tests, and Django as its only dependency."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_outbox_lock"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    expected = {
        path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected
    assert "django_outbox_lock/py.typed" in packed


def test_django_is_the_only_dependency_beside_the_extras(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(wheel.read(name))
    needed = metadata.get_all("Requires-Dist") or []
    assert [line for line in needed if "extra ==" not in line] == ["django>=5.2"]
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert {"postgresql", "mysql", "mssql", "rabbitmq"} <= extras
    assert metadata["License-Expression"] == "BSD-3-Clause"
