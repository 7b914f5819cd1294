"""What the demonstration leaves behind when it is ended; .ci/run has it run to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import WaitUntil


def anybody(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_ends_it_ends_all_its_processes(
    tmp_path: Path, wait_until: WaitUntil, number: signal.Signals
) -> None:
    folder = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, "-m", "testproject.demo"],
        cwd=ROOT,
        env={**os.environ, "DEMO_FOLDER": str(folder)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until((folder / "shop.log").exists, timeout=60, what="the shop starts")
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        wait_until(lambda: not anybody(process.pid), what="every process ends")
    finally:
        if anybody(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
