"""Start programs that die with the test runner and never run as root.

A child asks the kernel for SIGKILL when the thread that forked it ends (PR_SET_PDEATHSIG). So all
are forked by one thread that lives as long as this process: a server may be started or restarted
from any short-lived thread and outlives it, but not the runner, however the runner ends.
"""

from __future__ import annotations

import functools
import os
import pwd
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Account = pwd.struct_passwd
Child = subprocess.Popen[bytes]
_Job = tuple[Future[Child], Callable[[], Child]]


def account(preferred: str) -> Account | None:
    """The user to run as: None unless root, else ``preferred``, or nobody where it is unknown."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(preferred)
    except KeyError:
        return pwd.getpwnam("nobody")


def reachable(path: Path) -> bool:
    """Whether every user may come to ``path``, and to the file that it may be a link to."""
    folders = {*path.absolute().parents, *path.resolve().parents}
    return all(folder.stat().st_mode & 0o001 for folder in folders)


def give(path: Path, user: Account | None) -> None:
    """Make ``user`` the owner of one file or directory; nothing to do unless root."""
    if user:
        os.chown(path, user.pw_uid, user.pw_gid)


def unprivileged(argv: Sequence[str], user: Account | None) -> list[str]:
    """``argv`` behind setpriv, which drops to ``user`` and sets the parent-death signal."""
    drop = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if user else []
    return ["setpriv", *drop, "--pdeathsig=KILL", "--", *argv]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a server sees of the environment: nothing that the caller's shell happens to set."""
    path = os.environ.get("PATH", os.defpath)
    return {
        "PATH": f"{path}:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        **(extra or {}),
    }


def popen(argv: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str]) -> Child:
    """Start ``argv`` in a session of its own, with both outputs appended to ``log``."""

    def fork() -> Child:
        with log.open("ab") as output:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )

    future: Future[Child] = Future()
    _jobs(os.getpid()).put((future, fork))
    return future.result(timeout=30)


@functools.cache
def _jobs(pid: int) -> SimpleQueue[_Job]:
    """The queue of this process's forking thread; a forked child has another ``pid``."""
    jobs: SimpleQueue[_Job] = SimpleQueue()
    # A daemon, so that interpreter exit does not end it before the servers are stopped cleanly.
    threading.Thread(target=_work, args=(jobs,), name="server-forker", daemon=True).start()
    return jobs


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        future, job = jobs.get()
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001  # handed to the caller, who raises it
            future.set_exception(error)
