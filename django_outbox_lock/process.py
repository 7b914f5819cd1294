"""Who this process is, for the people who look at a lock."""

from __future__ import annotations

import functools
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def host() -> str:
    """The name of this machine, at most 255 characters."""
    return socket.gethostname()[:255]


def application() -> str:
    """The program and, for a management command, the command: ``manage.py runsweeper``."""
    return _named(*sys.argv[:2])


@functools.lru_cache(maxsize=8)
def _named(path: str = "", *arguments: str) -> str:
    file = Path(path)
    # Started with -m: the package says more than the file does.
    program = file.parent.name if file.name == "__main__.py" else file.name or "python"
    commands = arguments if program in {"manage.py", "django-admin", "django"} else []
    return " ".join([program, *commands])[:200]


def in_forked_children(call: Callable[[], object]) -> None:
    """Have every child call it before anything else; nothing on systems that do not fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def session_name(purpose: str) -> str:
    """Name under which a server lists a session of ours; PostgreSQL takes 63 bytes."""
    return f"outboxlock:{host()[:24]}:{os.getpid()}:{purpose}"[:63]
