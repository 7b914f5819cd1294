"""The processes of a server, read from /proc: found, signalled and awaited as one."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told apart from a later one with the same number by its start time."""

    pid: int
    started: int
    parent: int = field(compare=False)

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
        frozen += new
    return frozen


def end(processes: list[Process], timeout: float = 10.0) -> None:
    """Kill the processes and wait until the last is gone; TimeoutError after ``timeout`` s."""
    for process in processes:
        process.send(signal.SIGKILL)
    deadline = time.monotonic() + timeout
    while alive := [process for process in processes if process.alive]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"still alive {timeout} s after SIGKILL: {alive}")
        time.sleep(0.005)


def _read(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold anything.
    state, parent, *rest = stat.rpartition(")")[2].split()
    if state in "ZX":
        return None
    return Process(pid=pid, started=int(rest[17]), parent=int(parent))
