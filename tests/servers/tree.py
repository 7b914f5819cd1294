"""The processes of a server, read from /proc: found, signalled and awaited as one."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# A process in the middle of a slow fsync obeys no signal until it returns.
_TIMEOUT: Final = 15.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told apart from a later one with the same number by its start time."""

    pid: int
    started: int
    parent: int = field(compare=False)
    state: str = field(compare=False)

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie has ended."""
        return _read(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def family(pid: int) -> list[Process]:
    """The process ``pid`` and all its descendants, parents first; empty when it is gone."""
    everybody = [
        process
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (process := _read(int(entry.name)))
    ]
    found = [process for process in everybody if process.pid == pid]
    for parent in found:
        found.extend(process for process in everybody if process.parent == parent.pid)
    return found


def freeze(pid: int) -> list[Process]:
    """Stop the family with SIGSTOP, parents first, until nobody new is born; return it."""
    frozen: list[Process] = []
    while new := [process for process in family(pid) if process not in frozen]:
        for process in new:
            process.send(signal.SIGSTOP)
        # The signal takes effect later than kill(2) returns; until then a process may fork.
        _wait_for_none(new, _runs)
        frozen += new
    return frozen


def end(processes: list[Process]) -> None:
    """Kill the processes and wait until the last is gone."""
    for process in processes:
        process.send(signal.SIGKILL)
    _wait_for_none(processes, lambda process: process.alive)


def _runs(process: Process) -> bool:
    now = _read(process.pid)
    return now == process and now.state not in "Tt"


def _wait_for_none(processes: list[Process], still: Callable[[Process], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while left := [process for process in processes if still(process)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no effect of a signal in {_TIMEOUT} s on {left}")
        time.sleep(0.002)


def _read(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold anything.
    state, parent, *rest = stat.rpartition(")")[2].split()
    if state in "ZX":
        return None
    return Process(pid=pid, started=int(rest[17]), parent=int(parent), state=state)
